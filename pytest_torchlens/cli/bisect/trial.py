"""Runs one comparison in pytest, with nothing of the user's changed, and says whether it is good or bad."""

from __future__ import annotations

import enum
import os
import sys
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.baseline.wording import comparison_text
from pytest_torchlens.baseline.wording import headline
from pytest_torchlens.cli.bisect.processes import INNER_PATIENCE
from pytest_torchlens.cli.bisect.processes import run
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import from_json
from pytest_torchlens.records.files import temporary_folder

if TYPE_CHECKING:
    import subprocess


class Verdict(str, enum.Enum):
    """What a trial says, in the words of git."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One comparison.

    Attributes
    ----------
    verdict
        Whether the conditions fail the model; skipped if it could not be compared.
    words
        One line: what differs first, or why the model was not compared.
    details
        The whole comparison, if it is bad.
    differs
        Whether anything differs, within tolerance too.
    change
        The class of change; empty if nothing was compared.
    """

    verdict: Verdict
    words: str
    details: str = ""
    differs: bool = False
    change: str = ""

    def relative_to(self, folder: str) -> Trial:
        """Return the trial with paths in a folder as paths relative to it."""
        words, details = (text.replace(f"{folder}{os.sep}", "") for text in (self.words, self.details))
        return replace(self, words=words, details=details)


@dataclass(frozen=True, kw_only=True)
class Comparer:
    """How pytest is started.

    Attributes
    ----------
    model
        The arguments that name the model.
    folder
        Where pytest runs.
    fail
        Conditions, as those of ``--lens-fail-on``.
    timeout
        Seconds for the model; empty for the project's own.
    variables
        Environment variables that differ from those of this process.
    """

    model: tuple[str, ...]
    folder: str
    fail: tuple[str, ...] = ()
    timeout: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *options: str, **variables: str) -> Trial:
        """Run the model in pytest, with more options and environment variables, and judge its comparison.

        Raises
        ------
        CommandError
            If `model` stands for several models.
        """
        with_timeout = [f"--lens-timeout={self.timeout}"] if self.timeout else []
        with temporary_folder("pytest-lens-bisect-") as folder:
            result = Path(folder) / "run.json"
            conditions = [f"--lens-fail-on={condition}" for condition in self.fail]
            command = [*_PYTEST, f"--lens-json={result}", *self.model, *conditions, *with_timeout, *options]
            # What an interrupted run leaves, activations of a large model among it, is removed with the folder.
            environment = _environment() | self.variables | variables | {"TMPDIR": folder}
            ended = run(command, self.folder, environment, patience=INNER_PATIENCE)
            report = from_json(result.read_text(encoding="utf-8"), RunReport) if result.exists() else None
        if report is None or not report.models:
            return Trial(verdict=Verdict.SKIPPED, words=_complaint(ended))
        if len(report.models) > 1:
            names = ", ".join(model.name for model in report.models[:3])
            raise CommandError(f"expected one model, got {len(report.models)}: {names} …")
        return _judged(report.models[0])


_CLEARED = ("addopts", "lens_report", "lens_report_md", "lens_graph", "lens_keep")
"""What a project's own settings would add: reports in its folders, coverage, processes of xdist."""
_PYTEST = [
    *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--lens-validate", "--lens-parts=replay"),
    *(f"--override-ini={key}=" for key in _CLEARED),
]
_OTHER_RUNS = ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS", "CI")
"""Variables that would change what the run does, or add its result to that of another."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OTHER_RUNS}


def _complaint(ended: subprocess.CompletedProcess[str]) -> str:
    """Return why pytest ran no model: its usage error, or the last that it wrote."""
    lines = [line.strip() for line in f"{ended.stdout}\n{ended.stderr}".splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or [line for line in lines if line.startswith("E  ")] or lines or ["pytest wrote nothing"])[-1]


def _judged(model: ModelReport) -> Trial:
    found = model.comparison
    if found is None:
        return Trial(verdict=Verdict.SKIPPED, words=_why_not_compared(model))
    return Trial(
        verdict=Verdict.BAD if found.fails else Verdict.GOOD,
        words=_words(found),
        details=comparison_text(found, f"{model.zoo}:{model.name}").rstrip() if found.fails else "",
        differs=found.verdict is not Change.IDENTICAL,
        change=found.verdict.value,
    )


def _words(found: Comparison) -> str:
    first = found.first
    if first is None:
        return headline(found)
    size = f", {first.error:.2g} of the largest value" if first.error else ""
    limit = f" (limit {first.limit:.2g})" if size and first.limit else ""
    return f"{headline(found)}: {first.message}{size}{limit}"


def _why_not_compared(model: ModelReport) -> str:
    if model.error is not None:
        message = model.error.message.strip().partition("\n")[0]
        return f"{model.error.type} in stage {model.error.stage.value!r}: {message}"
    failures = [part.failures[0].message for part in model.verdict.parts if part.failures] if model.verdict else []
    return "; ".join([*failures, *model.notes]) or "its record does not hold"
