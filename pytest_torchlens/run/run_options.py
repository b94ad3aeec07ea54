"""What to do with each model of a run."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchlens.baseline.policy import Policy
    from pytest_torchlens.checks.catalog import Check
    from pytest_torchlens.report import Graphs


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What to do with each model."""

    validate: bool = False
    parts: tuple[str, ...] | None = None
    """Parts of the validation; None for all."""
    folder: Path | None = None
    """The report's folder; None for no report."""
    pictures: bool = False
    """Whether the report shows a picture of each activation."""
    graphs: Graphs | None = None
    """Drawings besides those of the report; None if not requested."""
    baseline: Policy | None = None
    """How baselines are treated; None for no comparison."""
    ignore: tuple[str, ...] = ()
    """Audit rules whose findings are left out."""
    checks: tuple[str, ...] | None = None
    """Names of the checks to run, or ``all`` or ``none``; None for those of the zoo file."""
    own_checks: tuple[Check, ...] = field(default=(), repr=False)
    """The project's own checks, which only this process knows."""
    device: str = ""
    """Where models run (``"cuda"``, ``"cuda:1"``); empty for the device that their zoo file names."""
