"""What pytest said of each model, gathered from its reports."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage

if TYPE_CHECKING:
    import pytest

_STRICT = "[XPASS(strict)] "
"""What pytest begins with where a failure was expected and nothing failed."""


@dataclass(frozen=True)
class Said:
    """pytest's last word on an item, and the reason it gave."""

    outcome: Outcome
    reason: str = ""


def outcome_of(report: pytest.TestReport) -> Said | None:
    """Return what a report of one phase says of its item; None where it says nothing new."""
    excused = getattr(report, "wasxfail", None)
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        return Said(Outcome.FAILED, crash.message if crash else str(report.longrepr))
    if report.skipped:
        return Said(Outcome.SKIPPED, _skip_reason(report)) if excused is None else Said(Outcome.XFAILED, excused)
    if report.when != "call":
        return None
    return Said(Outcome.PASSED) if excused is None else Said(Outcome.XPASSED, excused)


def _skip_reason(report: pytest.TestReport) -> str:
    """Return the reason alone: pytest's representation of a skip is (file, line, "Skipped: reason")."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")


def with_outcome(report: ModelReport, said: Said) -> ModelReport:
    """Return the report of a model with pytest's outcome and the reason, where one was given, as a note.

    Where pytest fails a model that did well by itself, the reason is its error.
    """
    if said.outcome is Outcome.FAILED and report.outcome is Outcome.PASSED and report.error is None:
        report = replace(report, error=_error_of(said.reason))
    excused = said.outcome in (Outcome.SKIPPED, Outcome.XFAILED, Outcome.XPASSED)
    notes = (*report.notes, f"{said.outcome.value}: {said.reason}") if excused else report.notes
    return replace(report, outcome=said.outcome, notes=notes)


def _error_of(reason: str) -> ErrorRecord:
    if not reason.startswith(_STRICT):
        return ErrorRecord(stage=Stage.DONE, type="Failed", message=reason.strip())
    named = "it passed, although an expected failure is named: " + reason.removeprefix(_STRICT)
    return ErrorRecord(stage=Stage.DONE, type="UnexpectedPass", message=named.rstrip(": "))


def without_report(nodeid: str, zoo: str, said: Said) -> ModelReport:
    """Return the report of a model that came to none of its own: skipped, or its process died."""
    report = ModelReport(zoo=zoo, name=nodeid.rpartition("::")[2], nodeid=nodeid, stage=Stage.BUILD)
    if said.outcome is Outcome.FAILED:
        error = ErrorRecord(
            stage=Stage.BUILD, type="NoReport", message=said.reason.strip() or "its process left no report"
        )
        report = replace(report, error=error)
    return with_outcome(report, said)
