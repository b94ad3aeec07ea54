"""Reproduces a failed ``lens_check`` of a test: runs the test again in a process that reports each comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.baseline.store import Store
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import temporary_folder
from pytest_torchlens.run.repro.accused import NothingToReproduceError
from pytest_torchlens.run.repro.accused import Pass
from pytest_torchlens.run.repro.accused import ReproError
from pytest_torchlens.run.repro.accused import saved_activations
from pytest_torchlens.run.repro.reproduce import Reproduction
from pytest_torchlens.run.repro.reproduce import reproduce_pass

if TYPE_CHECKING:
    from pytest_torchlens.baseline.snapshot import Snapshot
    from pytest_torchlens.history import ModelHistory
    from pytest_torchlens.run.other_python import OtherPython

_REQUEST = "PYTEST_LENS_REPRO"
"""Environment variable with what to reproduce, as JSON, for the process that runs the test."""
_PLUGIN = "pytest_torchlens.plugin.reproduction"


def reproduce_check(
    test: str, operation: str, other: OtherPython | None, out: Path | None, options: list[str]
) -> Reproduction:
    """Run a test, and write the reproduction of the first ``lens_check`` in it that differs from its baseline.

    Parameters
    ----------
    test
        Its node id.
    operation, other, out
        As for `reproduce`.
    options
        Options of pytest that say where the baselines are.

    Raises
    ------
    ReproError
        If the test compares nothing, or as `reproduce`.
    """
    with temporary_folder("pytest-lens-repro-") as folder:
        answer = Path(folder, "answer.json")
        request = {
            "operation": operation,
            "other": other.executable if other else None,
            "out": str(out.absolute()) if out else None,
            "here": str(Path.cwd()),
            "answer": str(answer),
        }
        environment = {**os.environ, _REQUEST: json.dumps(request)}
        command = [sys.executable, "-m", "pytest", test, "-q", "-p", _PLUGIN, *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        if not answer.exists():
            lines = (done.stdout.strip() or done.stderr.strip()).splitlines() or ["pytest said nothing"]
            raise ReproError(f"{test} compared no history with a baseline (lens_check): {lines[-1]}")
        return _read(json.loads(answer.read_text(encoding="utf-8")))


def _read(answer: dict[str, Any]) -> Reproduction:
    if "nothing" in answer:
        raise NothingToReproduceError(answer["nothing"])
    if "error" in answer:
        raise ReproError(answer["error"])
    return Reproduction(**{**answer, "script": Path(answer["script"]), "lines": tuple(answer["lines"])})


class CheckReproducer:
    """Called with each comparison of a test: reproduces the first that differs.

    Parameters
    ----------
    store
        The baselines.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._request = json.loads(os.environ[_REQUEST])
        self._is_done = False

    def __call__(self, key: str, history: ModelHistory, snapshot: Snapshot, comparison: Comparison) -> None:
        """Answer the request, unless it is answered."""
        if self._is_done:
            return
        self._is_done = comparison.verdict is not Change.IDENTICAL
        answer = self._answer(Pass(key, history, snapshot, comparison, saved_activations(self._store, key)))
        write_atomically(Path(self._request["answer"]), json.dumps(answer))

    def _answer(self, both: Pass) -> dict[str, Any]:
        request = self._request
        if both.comparison is not None and both.comparison.verdict is Change.NEW:
            return {"error": f"{both.name} has no baseline: store one where it is right (--lens-update=new)"}
        try:
            out = Path(request["out"]) if request["out"] else None
            os.chdir(request["here"])
            found = reproduce_pass(both, request["operation"], request["other"], out)
        except NothingToReproduceError as nothing:
            return {"nothing": str(nothing)}
        except ValueError as error:
            return {"error": str(error)}
        return {**asdict(found), "script": str(found.script)}
