"""What the options and ini keys of a run come to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.baseline_policy import check_alone
from pytest_torchlens.plugin.baseline_policy import policy_of
from pytest_torchlens.plugin.ci_settings import CiOptions
from pytest_torchlens.plugin.sweep_settings import SweepOptions

if TYPE_CHECKING:
    from pytest_torchlens.baseline.policy import Policy
    from pytest_torchlens.report import Graphs
    from pytest_torchlens.run import OtherPython


@dataclass(frozen=True)
class LensOptions:
    """Options and ini keys of a run, checked; an option wins over the ini key of its name."""

    zoos: tuple[str, ...]
    validate: bool
    parts: tuple[str, ...] | None
    """Parts of the validation; None for all."""
    report: Path | None
    junit_properties: bool
    graphs: Graphs | None
    """Drawings besides those of the report; None where none are asked for."""
    device: str
    """Where models run; empty for where the zoo says."""
    sweep: SweepOptions
    ci: CiOptions
    baseline: Policy | None
    """How baselines are treated; None where nothing is compared."""
    against: OtherPython | None
    """Whose run models are compared with; None for stored baselines."""

    @classmethod
    def of(cls, config: pytest.Config) -> LensOptions:
        """Read and check them.

        Raises
        ------
        pytest.UsageError
            If a part or an option of the drawings is unknown, a folder cannot be written to, or a device is not there.
        """
        option: Any = config.option
        if option.lens_parts and not option.lens_validate:
            raise pytest.UsageError("--lens-parts chooses parts of the validation: add --lens-validate")
        check_alone(config)
        against = _against(config)
        policy = policy_of(config) if option.lens_validate else None
        options = cls(
            zoos=tuple(option.lens_zoo),
            validate=option.lens_validate,
            parts=_parts(option.lens_parts or config.getini("lens_parts")),
            report=report_folder(config),
            junit_properties=config.getini("lens_junit_properties"),
            graphs=_graphs(config),
            device=_device(option.lens_device or config.getini("lens_device")),
            sweep=SweepOptions.of(config),
            ci=CiOptions.of(config),
            baseline=replace(policy, against=str(against)) if policy and against else policy,
            against=against,
        )
        if not option.collectonly:
            _check_writable("--lens-report", options.report)
            _check_writable("--lens-graph", options.graphs.folder if options.graphs else None)
            _check_writable("--lens-table", options.sweep.table.parent if options.sweep.table else None)
        return options


def report_folder(config: pytest.Config) -> Path | None:
    """Return the folder of the report; None where none is asked for."""
    return _folder(config, "lens_report", config.option.lens_report or config.getini("lens_report"))


def _parts(values: list[str]) -> tuple[str, ...] | None:
    if not values:
        return None
    from pytest_torchlens.validate import check_parts

    try:
        return check_parts([part.strip() for value in values for part in value.split(",")])
    except ValueError as error:
        raise pytest.UsageError(f"--lens-parts: {error}") from None


def _device(name: str) -> str:
    if not name:
        return name
    from pytest_torchlens.run import check_device

    try:
        return str(check_device(name))
    except ValueError as error:
        raise pytest.UsageError(f"--lens-device: {error}") from None


def _against(config: pytest.Config) -> OtherPython | None:
    name: str | None = config.option.lens_against
    if name is None:
        return None
    from pytest_torchlens.run import OtherPython
    from pytest_torchlens.run import OtherPythonError

    try:
        return OtherPython.find(name, config.invocation_params.dir)
    except OtherPythonError as error:
        raise pytest.UsageError(f"--lens-against: {error}") from None


def _graphs(config: pytest.Config) -> Graphs | None:
    name, *settings = (config.option.lens_graph or config.getini("lens_graph")).split(",")
    if "=" in name.partition("/")[0]:
        raise pytest.UsageError(f"--lens-graph begins with the setting {name!r}; a folder goes first: graphs,{name}")
    folder = _folder(config, "lens_graph", name)
    if folder is None and settings:
        raise pytest.UsageError(f"--lens-graph names no folder; one goes first: graphs,{','.join(settings)}")
    if folder is None:
        return None
    from pytest_torchlens.report import Graphs

    try:
        return Graphs.of(folder, settings)
    except (ValueError, TypeError) as error:
        raise pytest.UsageError(f"--lens-graph: {error}") from None


def _folder(config: pytest.Config, key: str, name: str) -> Path | None:
    """Return a folder: the option's from where pytest was started, the ini key's from rootdir."""
    if not name:
        return None
    return Path((config.invocation_params.dir if getattr(config.option, key) else config.rootpath) / name)


def _check_writable(option: str, folder: Path | None) -> None:
    if folder and (why := _why_unusable(folder)):
        raise pytest.UsageError(f"{option}: {folder} {why}; name a folder that can be written to")


def _why_unusable(folder: Path) -> str:
    """Make a folder, for models not to run in vain where that cannot be done; return why it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        return "is a file"
    except (OSError, ValueError) as error:
        return f"cannot be made ({getattr(error, 'strerror', None) or error})"
    return "" if os.access(folder, os.W_OK) else "cannot be written to"
