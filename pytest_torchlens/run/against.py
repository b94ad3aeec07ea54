"""The same models run by another environment's interpreter, for this one's results to be compared with."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.baseline.policy import UNKEPT
from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import Stage
from pytest_torchlens.run.isolated import Isolation
from pytest_torchlens.run.run import RunOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.run.other_python import OtherPython
    from pytest_torchlens.run.worker import Limits
    from pytest_torchlens.zoo import ModelCase


class Against:
    """Lets another interpreter store baselines, with all activations, in a folder of its own.

    Parameters
    ----------
    python
        The interpreter; its worker process goes on from model to model.
    options
        What is done with each model here.
    limits
        What a model may use there.

    Attributes
    ----------
    policy
        How this process compares with what the other stored.
    notes
        Why operations of the last model cannot be run again on its inputs; empty where they can.
    """

    def __init__(self, python: OtherPython, options: RunOptions, limits: Limits) -> None:
        self.notes: tuple[str, ...] = ()
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-lens-against-")
        root = Path(self._folder.name)
        self._store = Store.of(root)
        folder, pending, activations = map(str, (self._store.folder, self._store.pending, self._store.activations))
        plain = Policy(folder=folder, pending=pending, activations=activations)
        theirs = replace(plain, update=("new", "changed"), keep=("activations",))
        ours = options.baseline or plain
        self.policy = replace(plain, root=ours.root, fail_on=ours.fail_on, against=str(python))
        there = RunOptions(validate=True, parts=("replay",), baseline=theirs, device=options.device)
        self._isolation = Isolation(there, limits, python.worker())

    def run(self, case: ModelCase, progress: Callable[[Stage], None]) -> ErrorRecord | None:
        """Run a model there; return why there is nothing to compare with, None where there is."""
        try:
            result = self._isolation.run(case, progress)
        except ValueError as error:  # a model that another process cannot build
            return self._error("ValueError", str(error))
        if self._store.path(_key(case)).exists():
            told = result.report.comparison.notes if result.report.comparison else ()
            self.notes = tuple(f"{self._python}: {note}" for note in told if note.startswith(UNKEPT))
            return None
        if result.skipped is not None:
            return self._error("Skipped", result.skipped)
        return self._error(*_why(result.report))

    def forget(self, case: ModelCase) -> None:
        """Delete what was stored of a model."""
        self._store.remove(_key(case))

    def close(self) -> None:
        """End the other process, and delete all that it stored."""
        self._isolation.close()
        self._folder.cleanup()

    def _error(self, kind: str, why: str) -> ErrorRecord:
        return ErrorRecord(stage=Stage.COMPARE, type=kind, message=f"not run by {self._python}: {why}")


def _key(case: ModelCase) -> str:
    return key_of(case.zoo, case.name)


def _why(report: ModelReport) -> tuple[str, str]:
    """Return what went wrong in a run that stored nothing: kind and message."""
    if report.error is not None:
        return report.error.type, f"{report.error.message} (in stage {report.error.stage.value!r})"
    failed = [part.failures[0].message for part in report.verdict.parts if part.failures] if report.verdict else []
    return "Unproven", "; ".join([*failed, *report.notes]) or "its record does not hold"
