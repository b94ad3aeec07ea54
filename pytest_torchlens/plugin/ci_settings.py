"""What the options of a CI come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class CiOptions:
    """Files for a CI; None where one is not asked for."""

    markdown: Path | None
    json: Path | None

    @classmethod
    def of(cls, config: pytest.Config) -> CiOptions:
        """Read and check them.

        Raises
        ------
        pytest.UsageError
            If a file cannot be written.
        """
        return cls(_file(config, "lens_report_md"), _file(config, "lens_json"))


def _file(config: pytest.Config, key: str) -> Path | None:
    option: Any = getattr(config.option, key)
    name = option or config.getini(key)
    if not name:
        return None
    path = Path((config.invocation_params.dir if option else config.rootpath) / name)
    if path.is_dir() or (path.parent.exists() and not path.parent.is_dir()):
        where = "is a folder" if path.is_dir() else "is in no folder"
        raise pytest.UsageError(f"--{key.replace('_', '-')}: {path} {where}; name a file")
    return path
