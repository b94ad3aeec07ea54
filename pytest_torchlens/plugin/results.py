"""Results of models: the outcome that pytest reports, and the report files that processes share.

Worker processes pass model reports to the controller through files.  The files of an interrupted run stay in pytest's
cache, where ``--lens-resume`` finds them.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from pytest_torchlens.records import write_atomically

if TYPE_CHECKING:
    from pytest_torchlens.plugin.selection import Selection
    from pytest_torchlens.run import RunOptions


_STRICT = "[XPASS(strict)] "
"""What pytest begins with where a failure was expected and nothing failed."""


@dataclass(frozen=True)
class PytestOutcome:
    """pytest's last word on an item, and the reason it gave."""

    outcome: Outcome
    reason: str = ""


def outcome_of(report: pytest.TestReport) -> PytestOutcome | None:
    """Return what a report of one phase says of its item; None where it says nothing new."""
    excused = getattr(report, "wasxfail", None)
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        return PytestOutcome(Outcome.FAILED, crash.message if crash else str(report.longrepr))
    if report.skipped:
        return (
            PytestOutcome(Outcome.SKIPPED, _skip_reason(report))
            if excused is None
            else PytestOutcome(Outcome.XFAILED, excused)
        )
    if report.when != "call":
        return None
    return PytestOutcome(Outcome.PASSED) if excused is None else PytestOutcome(Outcome.XPASSED, excused)


def _skip_reason(report: pytest.TestReport) -> str:
    """Return the reason alone: pytest's representation of a skip is (file, line, "Skipped: reason")."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")


def with_outcome(report: ModelReport, said: PytestOutcome) -> ModelReport:
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


def without_report(nodeid: str, zoo: str, said: PytestOutcome) -> ModelReport:
    """Return the report of a model that came to none of its own: skipped, or its process died."""
    report = ModelReport(zoo=zoo, name=nodeid.rpartition("::")[2], nodeid=nodeid, stage=Stage.BUILD)
    if said.outcome is Outcome.FAILED:
        error = ErrorRecord(
            stage=Stage.BUILD, type="NoReport", message=said.reason.strip() or "its process left no report"
        )
        report = replace(report, error=error)
    return with_outcome(report, said)


class ReportFolder:
    """A folder with one file a model, shared by the controller and its workers.

    Files survive a worker that dies, need no pickle, and are too large for pytest's own reports.

    Parameters
    ----------
    folder
        Where; made when it is first written to.
    stamps
        What must be the same for a report to count in a later run, by node id: versions, options, zoo file.
    """

    def __init__(self, folder: Path, stamps: dict[str, str]) -> None:
        self.folder = folder
        self._stamps = stamps

    def write(self, report: ModelReport) -> None:
        """Put a report in place, whole or not at all."""
        write_atomically(self._path(report.nodeid), gzip.compress(to_json(report).encode(), compresslevel=1))

    def read(self, nodeid: str) -> ModelReport | None:
        """Return the report of an item; None where it came to none."""
        path = self._path(nodeid)
        if not path.exists():
            return None
        return from_json(gzip.decompress(path.read_bytes()).decode(), ModelReport)

    def mark_passed(self, nodeid: str) -> None:
        """Note that pytest counts an item as passed."""
        if self.folder.exists():
            self._mark(nodeid).touch()

    def has_passed(self, nodeid: str) -> bool:
        """Whether an item has passed, in this run or in the one that is resumed."""
        return self._mark(nodeid).exists() and self._path(nodeid).exists()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _mark(self, nodeid: str) -> Path:
        return self._path(nodeid).with_suffix(".passed")

    def _path(self, nodeid: str) -> Path:
        text = f"{nodeid}\n{self._stamps.get(nodeid, '')}"
        return self.folder / f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.json.gz"


RUNS = "lens-runs"
MOST_RUNS = 5
"""Runs cut short that can be resumed."""


def new_folder(config: pytest.Config) -> Path:
    """Return a folder for the reports of a run, not there yet: in pytest's cache, so that it can be resumed."""
    cache = getattr(config, "cache", None)  # -p no:cacheprovider
    name = f"{time.time_ns():020d}-{os.getpid()}"
    if cache is None or config.option.collectonly:
        return Path(tempfile.gettempdir(), f"pytest-lens-{name}")
    return Path(cache.mkdir(RUNS), name)


def folders_left(config: pytest.Config) -> list[Path]:
    """Return the folders of runs that were cut short, the last one first.

    Raises
    ------
    pytest.UsageError
        If pytest has no cache.
    """
    cache = getattr(config, "cache", None)
    if cache is None:
        raise pytest.UsageError("--lens-resume needs pytest's cache: leave out -p no:cacheprovider")
    return sorted((path for path in cache.mkdir(RUNS).iterdir() if path.is_dir()), reverse=True)


def remove_old(config: pytest.Config) -> None:
    """Remove what was left by runs too long ago."""
    for old in folders_left(config)[MOST_RUNS:]:
        shutil.rmtree(old, ignore_errors=True)


def stamps(selection: Selection, options: RunOptions) -> dict[str, str]:
    """Return for each model, by node id, what must be the same for its report to count in a later run."""
    from pytest_torchlens.run import find_environment

    same = f"{options}\n{find_environment()}"
    found: dict[str, str] = {}
    for choice in selection.choices.values():
        text = f"{same}\n{_texts(choice.zoo.path)}"
        found |= dict.fromkeys(choice.nodeids(), hashlib.blake2b(text.encode(), digest_size=8).hexdigest())
    return found


def _texts(path: Path) -> str:
    """Return a zoo file and the Python files beside it, which may build its models."""
    files = [path, *sorted(path.parent.glob("*.py"))]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
