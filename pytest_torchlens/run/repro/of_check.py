"""Reproduces a failed ``--lens-checks``: runs the check again, and makes a file of what it accuses."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pytest_torchlens.checks import results
from pytest_torchlens.checks.catalog import WORDS
from pytest_torchlens.checks.catalog import CheckNameError
from pytest_torchlens.checks.catalog import PlannedCheck
from pytest_torchlens.checks.catalog import check_name
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.checks.catalog import plan
from pytest_torchlens.checks.evidence import BadGradient
from pytest_torchlens.checks.evidence import CompiledPiece
from pytest_torchlens.checks.evidence import Evidence
from pytest_torchlens.checks.evidence import Exported
from pytest_torchlens.checks.evidence import LowPrecision
from pytest_torchlens.checks.evidence import MixedRows
from pytest_torchlens.checks.evidence import RaisedAnotherWay
from pytest_torchlens.checks.evidence import ReachedPositions
from pytest_torchlens.checks.evidence import TwoRuns
from pytest_torchlens.checks.evidence import Unsteady
from pytest_torchlens.checks.gradcheck import OTHER_THAN_DIFFERENCES
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.uncalled import Uncalled
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.records.files import temporary_folder
from pytest_torchlens.run.checks import check_model
from pytest_torchlens.run.other_python import OtherPython
from pytest_torchlens.run.preserved_state import preserved_global_state
from pytest_torchlens.run.repro.accused import Accused
from pytest_torchlens.run.repro.accused import NothingToReproduceError
from pytest_torchlens.run.repro.accused import ReproError
from pytest_torchlens.run.repro.folder import check_is_ours
from pytest_torchlens.run.repro.folder import write_reproduction
from pytest_torchlens.run.repro.gap import Gap
from pytest_torchlens.run.repro.passes import backward_program
from pytest_torchlens.run.repro.passes import repeated_program
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.reproduce import Reproduction
from pytest_torchlens.run.repro.reproduce import folder_name
from pytest_torchlens.run.repro.reproduce import function_name
from pytest_torchlens.run.repro.reproduce import short_place
from pytest_torchlens.run.repro.script import SCRIPT
from pytest_torchlens.run.repro.script import Story
from pytest_torchlens.run.repro.script import script_text
from pytest_torchlens.run.repro.search import Search
from pytest_torchlens.run.repro.shrink import shrink
from pytest_torchlens.run.repro.statements import WIDTH
from pytest_torchlens.run.repro.statements import UnprintableError
from pytest_torchlens.run.repro.trials import Outcome
from pytest_torchlens.run.repro.trials import RunnerError
from pytest_torchlens.run.repro.trials import runs
from pytest_torchlens.run.repro.two_ways import MakeProgram
from pytest_torchlens.run.repro.two_ways import WaysBench
from pytest_torchlens.run.repro.two_ways import maker_of
from pytest_torchlens.run.repro.ways import Beside
from pytest_torchlens.zoo import ModelCase


def reproduce_failed(case: ModelCase, name: str, other: OtherPython | None, folder: Path | None) -> Reproduction:
    """Write the reproduction of a check that fails.

    Parameters
    ----------
    case
        The model.
    name
        The name of the check.
    other
        An interpreter in which the file is run, too; None for this one alone.
    folder
        Where to write; None for a folder here, named after the operation.

    Raises
    ------
    ReproError
        If the model does not run, or the check goes wrong; `NothingToReproduceError` if there is no file to write.
    FolderError
        If the folder is not ours to write to.
    """
    known = known_checks()
    if name in WORDS:
        raise ReproError(f"--check: name one of {', '.join(known)}, got {name!r}")
    try:
        check_name(name, known)
    except CheckNameError as error:
        raise ReproError(f"--check: {error}") from None
    with preserved_global_state(), torch.set_grad_enabled(case.settings.mode == "train"):
        model = f"{case.zoo}:{case.name}"
        result, evidence = _checked(case, model, name)
        if (reason := _why_none(result)) or result.failure is None:
            raise NothingToReproduceError(f"{model}: {reason}")
        if evidence is None:
            raise NothingToReproduceError(_without_file(model, result, _why_no_evidence(result)))
        try:
            with WaysBench(sys.executable) as bench:
                return _OfCheck(model, result, evidence, bench, other).write(folder)
        except RunnerError as error:
            raise ReproError(str(error)) from None


_NO_OPERATION = "the check found no single operation that is at fault"
_WITHOUT_EVIDENCE = {
    "repeat": "what is kept between calls is made and read by the model's own code, and no operation is wrong",
    "state": "what is lost is lost by saving, copying or pickling the model's own classes, and no operation is wrong",
    "train-eval": "modes and values are kept by the model's own modules, and no operation is wrong",
    "gradients": "no operation reads the parameter, or leads on from what is made of it",
    "export": "the program differs from the model as a whole, or cannot be made of it",
    "compile": "only the whole model differs, or no piece of it can run alone",
    "onnx": "the program differs from the model, and that takes onnxruntime to see",
    "causal": "no operation lets later positions in when the pass is replayed",
    "padding": "no operation lets padded positions in when the pass is replayed",
    "packed": "each operation is right, and what it is given to read is not",
    "cache": "steps with a cache are several passes, and no operation of one is wrong by itself",
    "checkpointing": "the gradient of a parameter comes from a whole part that runs again",
    "shapes": "a size is kept or refused by the model's own code, and no operation is wrong",
    "dtype": "the model lets types meet that PyTorch does not combine, or no single operation loses the values",
}
_OF_GRADCHECK = "the derivative is that of a custom autograd function, which is the model's own code"


def _why_no_evidence(result: CheckResult) -> str:
    if result.failure is not None and result.failure.message.endswith(OTHER_THAN_DIFFERENCES):
        return _OF_GRADCHECK
    return _WITHOUT_EVIDENCE.get(result.name, _NO_OPERATION)


class _Runs:
    """A check that the model runs at all."""

    name, sentence, cost = "runs", "It runs.", 1

    def run(self, subject: Subject, **options: Any) -> CheckResult:
        """Run the model once; the checks after it use the same pass."""
        return results.passed(self.name, compared=1 + len(subject.outputs))


def _checked(case: ModelCase, name_of_model: str, name: str) -> tuple[CheckResult, Evidence | None]:
    """Return the result of a check, run as in a run of the plugin, and what is accused at the place of its failure."""
    settings, evidence = case.settings, list[Evidence]()
    fresh = replace(case, settings=replace(settings, seed=settings.seed + 1))
    try:
        model = case.build()
        inputs = case.make_inputs(model)
    except Exception as error:  # a model may raise anything
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ReproError(f"{name_of_model} does not run in this environment: {reason}") from error
    uncalled = Uncalled.of(model, is_new=True)
    planned = [PlannedCheck(_Runs()), *plan([name], settings.checks)]
    checked = check_model(model, inputs, planned, settings.seed, fresh.build, evidence.append, uncalled)
    runs_at_all, result = checked
    if runs_at_all.status is not CheckStatus.PASSED:
        reason = runs_at_all.words.removeprefix("failed: ").partition("\n")[0]
        raise ReproError(f"{name_of_model} does not run in this environment: {reason}")
    operation = result.failure.operation if result.failure else ""
    return result, next((one for one in reversed(evidence) if one.is_of(operation)), None)


def _why_none(result: CheckResult) -> str:
    """Return why a result has nothing to reproduce; empty if it failed."""
    if result.status is CheckStatus.FAILED:
        return ""
    if result.status is CheckStatus.ERROR:
        raise ReproError(f"the check {result.name} itself went wrong: {result.words}")
    return f"the check {result.name} does not fail here: {result.words}"


def _without_file(model: str, result: CheckResult, why: str) -> str:
    """Return that a failure has no file of torch alone, with what to do instead."""
    assert result.failure is not None  # noqa: S101 - it failed
    failure = result.failure
    what = f"{model}: {result.words}" + (f" ({failure.cause})" if failure.cause else "")
    return f"{what}\nno file of torch alone shows it: {why}\nwhat to do: {failure.advice or 'see docs/checks.md'}"


class _OfCheck:
    def __init__(
        self, model: str, result: CheckResult, evidence: Evidence, bench: WaysBench, other: OtherPython | None
    ) -> None:
        assert result.failure is not None  # noqa: S101 - it failed
        self._result = result
        self._evidence = evidence
        self._bench = bench
        self._other = other
        self._accused = Accused(
            model=model,
            history=evidence.history,
            number=evidence.number,
            operation=evidence.history.label(evidence.number),
            why=f"{result.name}: {result.failure.message}",
            source_line=result.failure.source_line,
        )
        self._first_size = 0

    def write(self, folder: Path | None) -> Reproduction:
        folder = folder or Path(folder_name(self._accused))
        check_is_ours(folder)
        try:
            program, gap, expected = self._found()
        except (UnprintableError, ReproError) as error:
            raise NothingToReproduceError(_without_file(self._accused.model, self._result, str(error))) from None
        text = script_text(program, expected, gap, self._story(program, gap))
        status, line = self._ended(text, program, gap)
        if status != 1:
            why = f"{self._accused.operation} does not show it when it runs alone"
            raise NothingToReproduceError(_without_file(self._accused.model, self._result, why))
        write_reproduction(folder, text, program, None, gap)
        return self._confirmed(folder / SCRIPT, program, line)

    def _ended(self, text: str, program: Program, gap: Gap) -> tuple[int, str]:
        """Return with which status the file ends here, and its last line."""
        with temporary_folder("pytest-lens-repro-") as trial:
            write_reproduction(Path(trial), text, program, None, gap)
            return runs(self._bench.suspect.executable, Path(trial) / SCRIPT)

    def _found(self) -> tuple[Program, Gap, torch.Tensor | None]:
        """Return the program of the file, what it shows, and a result like those that it compares."""
        if isinstance(self._evidence, Unsteady):
            return (*repeated_program(self._evidence), None)
        if isinstance(self._evidence, BadGradient):
            return (*backward_program(self._evidence), None)
        make = maker_of(self._evidence)
        assert make is not None  # noqa: S101 - all other evidence has two ways
        program, outcome = self._both_ways(make)
        assert outcome.gap is not None  # noqa: S101 - both raise otherwise
        return program, outcome.gap, outcome.expected

    def _both_ways(self, make: MakeProgram) -> tuple[Program, Outcome]:
        if isinstance(self._evidence, CompiledPiece | RaisedAnotherWay):
            whole = make(self._evidence.numbers if isinstance(self._evidence, CompiledPiece) else [])
            outcome = self._bench.run(whole)
            if outcome.error or outcome.gap is None:
                raise NothingToReproduceError(outcome.error or "the piece computes the same alone in a new process")
        else:
            found = _WaysSearch(self._accused, self._bench, make).shortest()
            whole, outcome = found.program, found.outcome
        assert outcome.gap is not None  # noqa: S101 - the search raises otherwise
        whole, gap = whole.with_result(outcome.place), outcome.gap
        self._first_size = whole.size
        program = shrink(whole, self._bench, gap)
        shrunk = self._bench.run(program)
        return (whole, replace(outcome, place=0)) if shrunk.gap is None else (program, shrunk)

    # -- what the file says ----------------------------------------------------------------------------------------

    def _story(self, program: Program, gap: Gap) -> Story:
        message = self._result.failure.message if self._result.failure else ""
        right = "both agree" if maker_of(self._evidence) else "the result is as it should be"
        origin = [
            f"From {self._accused.model}, at {self._accused.operation}, which the check {self._result.name} accuses:",
            *textwrap.wrap(f"{message}.", WIDTH),
            *([f"Line: {short_place(self._accused.source_line)}"] if self._accused.source_line else []),
            f"Needs torch alone. Exit status: 0 where {right}, 1 where not.",
        ]
        environment = (f"environment: {self._bench.suspect.words}", *([f"found: {gap.words}"] if gap.words else []))
        return Story(f"{function_name(program)} {_verb(self._evidence, program)}.", environment, tuple(origin))

    def _confirmed(self, script: Path, program: Program, line: str) -> Reproduction:
        lines = [f"{self._accused.model}, {self._accused.operation}: {self._accused.why}"]
        lines += [f"smallest run: {len(program.statements)} operations"] if len(program.statements) > 1 else []
        if program.size < self._first_size:
            lines.append(f"inputs shrunk from {self._first_size:,} to {program.size:,} elements")
        lines += [f"written: {script}", f"here:  exit 1: {line}"]
        if self._other is not None:
            other_status, other_line = runs(self._other.executable, script)
            lines.append(f"there: exit {other_status}: {other_line}")
        lines.append("confirmed: it fails here, with torch alone")
        return Reproduction(self._accused.operation, script, confirmed=True, lines=tuple(lines))


def _verb(evidence: Evidence, program: Program) -> str:
    """Return what an operation does wrongly."""
    if isinstance(evidence, TwoRuns):
        is_same = not isinstance(program.way, Beside) or program.way.same_statements
        return f"{'gives something else' if is_same else 'is called with other arguments'} {evidence.way}"
    if isinstance(evidence, RaisedAnotherWay):
        return f"raises {evidence.way}"
    if isinstance(evidence, MixedRows):
        return "mixes the rows of a batch"
    if isinstance(evidence, ReachedPositions):
        return "lets positions of a sequence reach others that must not depend on them"
    if isinstance(evidence, LowPrecision):
        return f"errs by more than {str(evidence.dtype).removeprefix('torch.')} explains"
    if isinstance(evidence, CompiledPiece):
        return f"has other {'gradients' if evidence.gradients else 'results'} when it is compiled"
    if isinstance(evidence, Exported):
        return "gives something else when it is exported"
    if isinstance(evidence, BadGradient):
        return _OF_GRADIENTS[evidence.state]
    return "gives other values each time"


_OF_GRADIENTS = {
    "missing": "passes no gradient on",
    "not finite": "has a backward that makes a gradient that is not finite",
    "zero": "has a backward that makes only zeros",
}


class _WaysSearch(Search):
    """Searches with programs that run both ways."""

    def __init__(self, accused: Accused, bench: WaysBench, make: MakeProgram) -> None:
        super().__init__(accused, bench, lambda call, path, read: None)
        self._make = make

    def _program(self, numbers: Sequence[int]) -> Program:
        try:
            return self._make(numbers)
        except ValueError as error:
            why = f"{self._accused.operation} cannot be written as code of torch alone: {error}"
            raise NothingToReproduceError(why) from None
