"""Options and ini keys, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_torchlens.plugin.arguments import ZOO_FOLDER
from pytest_torchlens.plugin.arguments import names_zoo


def add_options(parser: pytest.Parser) -> None:
    """Declare all options and ini keys."""
    group = parser.getgroup("lens", "model graph auditing (pytest-torchlens)")
    group.addoption(
        "--lens-zoo",
        metavar="ZOO:NAME[,NAME...]",
        dest="lens_zoo",
        action="append",
        default=[],
        help="Audit models of a zoo, each one item, with no test written: torchvision:resnet18,alexnet. "
        "A name may be a glob ('timm:test_*'); ZOO alone stands for all its models. May be repeated.",
    )
    group.addoption(
        "--lens-validate",
        dest="lens_validate",
        action="store_true",
        default=False,
        help="Prove each recorded graph: replay it from its inputs bit for bit, and perturb every edge. "
        "A model whose graph does not hold fails. Default: models are run and recorded only.",
    )
    group.addoption(
        "--lens-parts",
        metavar="PART[,PART...]",
        dest="lens_parts",
        action="append",
        default=[],
        help="Parts of the validation, of observer, replay, perturbation and invariants. Default: all.",
    )
    group.addoption(
        "--lens-report",
        metavar="DIR",
        dest="lens_report",
        default=None,
        help="Write report.json and pages with each model's graph, layers and verdict into this folder. "
        "Default: no report, only the table at the end.",
    )
    parser.addini("lens_zoo_paths", f"Folders of zoo files (default: {ZOO_FOLDER})", "paths", default=None)
    parser.addini("lens_parts", "Parts of the validation, as --lens-parts", "args", default=[])
    parser.addini("lens_report", "Folder of the report, as --lens-report", default="")
    parser.addini(
        "lens_junit_properties",
        "Write lens.* properties into JUnit XML (default: true)",
        "bool",
        default=True,
    )


def is_wanted(config: pytest.Config) -> bool:
    """Whether this run has to do with models: an option says so, or a zoo file was named."""
    option = config.option
    return bool(
        option.lens_zoo
        or option.lens_validate
        or option.lens_parts
        or option.lens_report
        or (
            config.args_source is config.ArgsSource.ARGS
            and any(names_zoo(config, arg) for arg in config.args)
        )
    )


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
