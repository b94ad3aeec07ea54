"""Results of models: the outcome that pytest reports, and the report files that processes share.

Worker processes pass model reports to the controller through files.  The files of an interrupted run stay in pytest's
cache, where ``--lens-resume`` finds them.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
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
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.records.files import check_folder
from pytest_torchlens.records.files import remove_folder
from pytest_torchlens.records.files import temporary_path
from pytest_torchlens.records.files import touch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchlens.plugin.selection import Selection
    from pytest_torchlens.run import RunOptions


_STRICT_XFAIL = "[XPASS(strict)] "
"""Beginning of pytest's message for an unexpected pass; its report has no other sign."""


@dataclass(frozen=True)
class PytestOutcome:
    """pytest's outcome of an item, and its reason."""

    outcome: Outcome
    reason: str = ""


def outcome_of(report: pytest.TestReport) -> PytestOutcome | None:
    """Return the outcome that a report of one phase sets; None if it sets none."""
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


def with_outcome(report: ModelReport, outcome: PytestOutcome) -> ModelReport:
    """Return a model's report with pytest's outcome, and its reason as a note.

    If pytest fails a model that passed by itself, the reason is its error.
    """
    if outcome.outcome is Outcome.FAILED and report.outcome is Outcome.PASSED and report.error is None:
        report = replace(report, error=_error_of(outcome.reason))
    excused = outcome.outcome in (Outcome.SKIPPED, Outcome.XFAILED, Outcome.XPASSED)
    notes = (*report.notes, f"{outcome.outcome.value}: {outcome.reason}") if excused else report.notes
    return replace(report, outcome=outcome.outcome, notes=notes)


def _error_of(reason: str) -> ErrorRecord:
    if not reason.startswith(_STRICT_XFAIL):
        return ErrorRecord(stage=Stage.DONE, type="Failed", message=reason.strip())
    message = "it passed, although an expected failure is named: " + reason.removeprefix(_STRICT_XFAIL)
    return ErrorRecord(stage=Stage.DONE, type="UnexpectedPass", message=message.rstrip(": "))


def missing_report(nodeid: str, zoo: str, name: str, outcome: PytestOutcome) -> ModelReport:
    """Return a report for a model that wrote none: it was skipped, or its process died."""
    report = ModelReport(zoo=zoo, name=name, nodeid=nodeid, stage=Stage.BUILD)
    if outcome.outcome is Outcome.FAILED:
        error = ErrorRecord(
            stage=Stage.BUILD, type="NoReport", message=outcome.reason.strip() or "its process left no report"
        )
        report = replace(report, error=error)
    return with_outcome(report, outcome)


class ReportFolder:
    """A folder with one file per model, shared by the controller and its workers.

    Files survive a worker's death, need no pickle, and may be larger than pytest's own reports allow.

    Parameters
    ----------
    folder
        The folder; the first write creates it.
    stamps
        Digests of versions, options and zoo file by node id; a later run reuses only reports with the same stamp.
    """

    def __init__(self, folder: Path, stamps: dict[str, str]) -> None:
        self.folder = folder
        self._stamps = stamps
        self._unwritten: dict[str, ModelReport] = {}
        """Brief reports whose file could not be written, by node id."""

    def write(self, report: ModelReport) -> None:
        """Write a report atomically; if that fails, keep the report in memory, without its operations."""
        try:
            write_atomically(self._path(report.nodeid), gzip.compress(to_json(report).encode(), compresslevel=1))
        except UnwritableError as error:
            self._unwritten[report.nodeid] = report.with_unwritten(error).brief()

    def take_unwritten(self) -> list[str]:
        """Return the reports that an xdist worker has in memory, as text for the controller, and forget them."""
        texts = [to_json(report) for report in self._unwritten.values()]
        self._unwritten.clear()
        return texts

    def add_unwritten(self, texts: Iterable[str]) -> None:
        """Add the reports that a worker had in memory."""
        for text in texts:
            report = from_json(text, ModelReport)
            self._unwritten[report.nodeid] = report

    def read(self, nodeid: str) -> ModelReport | None:
        """Return the report of an item; None if it wrote none."""
        if nodeid in self._unwritten:
            return self._unwritten[nodeid]
        path = self._path(nodeid)
        if not path.exists():
            return None
        return from_json(gzip.decompress(path.read_bytes()).decode(), ModelReport)

    def mark_passed(self, nodeid: str) -> None:
        """Note that an item passed in pytest."""
        if self.folder.exists():
            with contextlib.suppress(UnwritableError):  # a resumed run will run it again
                touch(self._passed_file(nodeid))

    def has_passed(self, nodeid: str) -> bool:
        """Whether an item passed, in this run or in the resumed one."""
        return self._passed_file(nodeid).exists() and self._path(nodeid).exists()

    def remove(self) -> None:
        """Remove the folder."""
        remove_folder(self.folder)

    def _passed_file(self, nodeid: str) -> Path:
        return self._path(nodeid).with_suffix(".passed")

    def _path(self, nodeid: str) -> Path:
        text = f"{nodeid}\n{self._stamps.get(nodeid, '')}"
        return self.folder / f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.json.gz"


RUNS_FOLDER = "lens-runs"
MOST_RUNS = 5
"""Interrupted runs to keep."""


def new_folder(config: pytest.Config) -> Path:
    """Return the path for a run's reports, in pytest's cache, so that ``--lens-resume`` finds it.

    Without a cache that can be written, it is in the folder for temporary files.

    Raises
    ------
    pytest.UsageError
        If that cannot be written either.
    """
    name = f"{time.time_ns():020d}-{os.getpid()}"
    try:
        if config.option.collectonly:
            return temporary_path(name)
        with contextlib.suppress(OSError):  # the project is read-only
            if folder := _runs_folder(config):
                check_folder(folder)
                return folder / name
        check_folder(folder := temporary_path(f"pytest-lens-{name}"))
    except UnwritableError as error:
        raise pytest.UsageError(f"the results of models: {error}") from None
    return folder


def _runs_folder(config: pytest.Config) -> Path | None:
    """Return the folder in pytest's cache for the reports of runs; None with ``-p no:cacheprovider``."""
    cache = getattr(config, "cache", None)
    return Path(cache.mkdir(RUNS_FOLDER)) if cache else None


def interrupted_runs(config: pytest.Config) -> list[Path]:
    """Return the folders of interrupted runs, the last one first.

    Raises
    ------
    pytest.UsageError
        If pytest's cache is disabled.
    """
    try:
        folder = _runs_folder(config)
    except OSError:  # the cache was never written
        return []
    if folder is None:
        raise pytest.UsageError("--lens-resume needs pytest's cache: leave out -p no:cacheprovider")
    return sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)


def remove_old_runs(config: pytest.Config) -> None:
    """Remove the folders of older interrupted runs."""
    for old in interrupted_runs(config)[MOST_RUNS:]:
        remove_folder(old)


def stamps(selection: Selection, options: RunOptions) -> dict[str, str]:
    """Return a digest by node id; it must be equal for a later run to reuse the model's report."""
    if not selection.choices:
        return {}
    from pytest_torchlens.run import find_environment

    same = f"{options}\n{find_environment()}"
    found: dict[str, str] = {}
    for choice in selection.choices.values():
        text = f"{same}\n{_source_text(choice.zoo.path)}"
        found |= dict.fromkeys(choice.models(), hashlib.blake2b(text.encode(), digest_size=8).hexdigest())
    return found


def _source_text(path: Path) -> str:
    """Return the text of a zoo file and of the Python files next to it, which may build its models."""
    files = [path, *sorted(path.parent.glob("*.py"))]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
