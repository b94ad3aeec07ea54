"""What the options and ini keys of a run come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class LensOptions:
    """Options and ini keys of a run, checked; an option wins over the ini key of its name."""

    zoos: tuple[str, ...]
    validate: bool
    parts: tuple[str, ...] | None
    """Parts of the validation; None for all."""
    report: Path | None
    junit_properties: bool

    @classmethod
    def of(cls, config: pytest.Config) -> LensOptions:
        """Read and check them.

        Raises
        ------
        pytest.UsageError
            If a part is unknown, or the report's folder is a file.
        """
        option: Any = config.option
        if option.lens_parts and not option.lens_validate:
            raise pytest.UsageError("--lens-parts chooses parts of the validation: add --lens-validate")
        return cls(
            zoos=tuple(option.lens_zoo),
            validate=option.lens_validate,
            parts=_parts(option.lens_parts or config.getini("lens_parts")),
            report=_report_folder(config),
            junit_properties=config.getini("lens_junit_properties"),
        )


def _parts(values: list[str]) -> tuple[str, ...] | None:
    if not values:
        return None
    from pytest_torchlens.validate import check_parts

    try:
        return check_parts([part.strip() for value in values for part in value.split(",")])
    except ValueError as error:
        raise pytest.UsageError(f"--lens-parts: {error}") from None


def _report_folder(config: pytest.Config) -> Path | None:
    """Return the report's folder: the option's from where pytest was started, the ini key's from rootdir."""
    if option := config.option.lens_report:
        folder = config.invocation_params.dir / option
    elif ini := config.getini("lens_report"):
        folder = config.rootpath / ini
    else:
        return None
    if folder.exists() and not folder.is_dir():
        raise pytest.UsageError(f"--lens-report: {folder} is a file; name a folder")
    return Path(folder)
