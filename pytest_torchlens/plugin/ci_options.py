"""Options of what a CI reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


def add_ci_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    """Declare them."""
    group.addoption(
        "--lens-report-md",
        metavar="FILE",
        dest="lens_report_md",
        default=None,
        help="Write the run as Markdown into this file: counts, what failed and why, a table. In a GitHub job it also "
        "goes to the summary of the step, asked for or not. Default: no file.",
    )
    group.addoption(
        "--lens-json",
        metavar="FILE",
        dest="lens_json",
        default=None,
        help="Write the run as JSON into this file, in the published form of report.json, without the models' layers. "
        "Default: no file.",
    )
    parser.addini("lens_report_md", "File for the run as Markdown, as --lens-report-md", default="")
    parser.addini("lens_json", "File for the run as JSON, as --lens-json", default="")


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
