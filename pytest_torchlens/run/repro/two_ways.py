"""Makes programs of what a failed check accuses, and runs them both ways in one environment."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.checks.evidence import CompiledPiece
from pytest_torchlens.checks.evidence import Evidence
from pytest_torchlens.checks.evidence import Exported
from pytest_torchlens.checks.evidence import LowPrecision
from pytest_torchlens.checks.evidence import MixedRows
from pytest_torchlens.checks.evidence import RaisedAnotherWay
from pytest_torchlens.checks.evidence import ReachedPositions
from pytest_torchlens.checks.evidence import TwoRuns
from pytest_torchlens.checks.exact import relative_error
from pytest_torchlens.checks.places import pairs_of
from pytest_torchlens.checks.replays import put_inputs
from pytest_torchlens.checks.results import apart
from pytest_torchlens.checks.rounding import rounded
from pytest_torchlens.checks.side_by_side import Fit
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.run.preserved_state import preserved_global_state
from pytest_torchlens.run.repro.gap import OWN_ERROR
from pytest_torchlens.run.repro.gap import Form
from pytest_torchlens.run.repro.gap import Gap
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.program import inputs_of
from pytest_torchlens.run.repro.program import program_of
from pytest_torchlens.run.repro.runner import run
from pytest_torchlens.run.repro.script import program_text
from pytest_torchlens.run.repro.script import stored
from pytest_torchlens.run.repro.statements import UnprintableError
from pytest_torchlens.run.repro.trials import Bench
from pytest_torchlens.run.repro.trials import Outcome
from pytest_torchlens.run.repro.trials import Results
from pytest_torchlens.run.repro.trials import Trial
from pytest_torchlens.run.repro.ways import INSIDE
from pytest_torchlens.run.repro.ways import WHOLE
from pytest_torchlens.run.repro.ways import Beside
from pytest_torchlens.run.repro.ways import Compiled
from pytest_torchlens.run.repro.ways import ExportedAlone
from pytest_torchlens.run.repro.ways import InFloat64
from pytest_torchlens.run.repro.ways import OtherPositions
from pytest_torchlens.run.repro.ways import OtherRows
from pytest_torchlens.run.repro.ways import Part
from pytest_torchlens.run.repro.ways import parts_like

MakeProgram = Callable[[Sequence[int]], Program]
"""Returns the program of some calls of the plain pass; raises `UnprintableError` if there is none."""


def maker_of(evidence: Evidence) -> MakeProgram | None:
    """Return what makes programs that run both ways; None if the evidence is of another kind."""
    recording = evidence.history.recording
    if isinstance(evidence, TwoRuns):
        return partial(_beside, evidence, dict(pairs_of(evidence.history, evidence.other)))
    if isinstance(evidence, RaisedAnotherWay):
        return lambda numbers: _raising(evidence)
    if isinstance(evidence, MixedRows):
        return partial(_with_other_rows, recording, evidence.changes)
    if isinstance(evidence, ReachedPositions):
        return partial(_with_other_positions, evidence)
    if isinstance(evidence, LowPrecision):
        double = InFloat64(evidence.dtype, evidence.least)
        return lambda numbers: replace(program_of(recording, numbers), way=double)
    if isinstance(evidence, CompiledPiece):
        way = Compiled(evidence.options, evidence.gradients)
        return lambda numbers: replace(program_of(recording, numbers), way=way)
    if isinstance(evidence, Exported):
        return lambda numbers: replace(program_of(recording, numbers), way=ExportedAlone())
    return None


# -- programs ----------------------------------------------------------------------------------------------------------


def _beside(evidence: TwoRuns, partners: Mapping[int | None, int | None], numbers: Sequence[int]) -> Program:
    others = [partner for number in numbers if (partner := partners.get(number)) is not None]
    if len(others) < len(numbers):
        raise UnprintableError("the other run does not make the same calls")
    plain = program_of(evidence.history.recording, numbers)
    other = program_of(evidence.other.recording, others)
    if [*plain.inputs] != [*other.inputs] or len(plain.results) != len(other.results):
        raise UnprintableError("the calls read other tensors in the other run")
    part = partial(_part, evidence.fit)
    parts = {name: part(other.inputs[name], tensor, name) for name, tensor in plain.inputs.items()}
    results = [part(*pair, "result") for pair in zip(_results(other), _results(plain), strict=True)]
    way = Beside(plain, parts, results, plain.statements == other.statements)
    return replace(other, way=way)


def _raising(evidence: RaisedAnotherWay) -> Program:
    """Return the program of a call that raises in the other pass, on what it read there."""
    recording, number = evidence.history.recording, evidence.number
    plain = program_of(recording, [number])
    call, there = recording.calls[number], partial(_there, recording, evidence.recording)
    moved = copy(call)
    moved.args, moved.kwargs = substitute(call.args, there), substitute(call.kwargs, there)
    inputs = inputs_of(replace(evidence.recording, calls=[*evidence.recording.calls, moved]), number)
    if [*inputs] != [*plain.inputs]:
        raise UnprintableError("the call reads other tensors in the other run")
    parts = {name: _part(evidence.fit, inputs[name], tensor, name) for name, tensor in plain.inputs.items()}
    way = Beside(plain, parts, [WHOLE] * len(plain.results))
    return replace(plain, inputs=inputs, way=way)


def _there(here: Recording, there: Recording, leaf: Any) -> Any:
    """Return what a leaf of an argument is in the other pass."""
    if isinstance(leaf, Aliased):
        raise UnprintableError("it reads memory that other calls wrote to")
    if not isinstance(leaf, Value):
        return leaf
    if leaf.call < 0:
        return there.sources[leaf.position].value
    place = next(at for at, value in enumerate(here.calls[leaf.call].outputs) if value is leaf)
    return there.calls[leaf.call].outputs[place]


def _part(fit: Fit, other: torch.Tensor, plain: torch.Tensor, name: str) -> Part:
    """Return which part of a tensor of the other run is that of the plain one: the nearest of those of its shape."""
    found = parts_like(other, plain, fit)
    if not found:
        raise UnprintableError(f"{name} has shape {tuple(plain.shape)}, and {tuple(other.shape)} in the other run")
    return min(found, key=lambda part: _distance(part.of(other), plain))


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(apart(one, other).sum()) if one.numel() else 0.0


def _results(program: Program) -> list[torch.Tensor]:
    """Return what a program computes in this process."""
    tensors = {name: stored(tensor) for name, tensor in program.inputs.items()}
    with preserved_global_state():
        found = run(program_text(program), tensors)
    if isinstance(found, str):
        raise UnprintableError(f"it does not run alone: {found}")
    return found


def _with_other_rows(
    recording: Recording, changes: Sequence[Mapping[str, torch.Tensor]], numbers: Sequence[int]
) -> Program:
    program = program_of(recording, numbers)
    others, first = (
        program_of(recording, numbers, prepare=lambda player, change=change: put_inputs(player, recording, change))  # type: ignore[misc]
        for change in changes
    )
    inputs, changed = dict(program.inputs), []
    for name, tensor in program.inputs.items():
        if not (torch.equal(tensor, others.inputs[name]) and torch.equal(tensor, first.inputs[name])):
            changed.append(name)
            inputs |= {f"{name}_others": others.inputs[name], f"{name}_first": first.inputs[name]}
    if not changed:
        raise UnprintableError("other rows change nothing that it reads")
    return replace(program, inputs=inputs, way=OtherRows(changed))


def _with_other_positions(evidence: ReachedPositions, numbers: Sequence[int]) -> Program:
    recording, members = evidence.history.recording, sorted({*numbers, *evidence.through})
    program = program_of(recording, members)
    changed = program_of(recording, members, prepare=lambda player: put_inputs(player, recording, evidence.changed))
    others = {
        f"{name}_changed": changed.inputs[name]
        for name, tensor in program.inputs.items()
        if not torch.equal(tensor, changed.inputs[name])
    }
    if not others:
        raise UnprintableError("other values at other positions change nothing that it reads")
    way = OtherPositions([name.removesuffix("_changed") for name in others])
    results, inputs = (program.results[evidence.place],), {**program.inputs, **others, INSIDE: evidence.inside}
    return replace(program, inputs=inputs, results=results, way=way)


# -- running them ------------------------------------------------------------------------------------------------------


class WaysBench(Bench):
    """Runs programs both ways in one environment: the plain results are the expected ones.

    Parameters
    ----------
    suspect
        The interpreter.
    """

    def __init__(self, suspect: str) -> None:
        super().__init__(suspect, None)

    def run_all(self, trials: Sequence[Trial], expected: Sequence[torch.Tensor] | None = None) -> list[Outcome]:
        """Run trials; one that raises in the other way only differs by that."""
        pairs = zip(trials, super().run_all(trials, expected), strict=True)
        return [self._raised(trial, outcome) if outcome.error else outcome for trial, outcome in pairs]

    def _raised(self, trial: Trial, outcome: Outcome) -> Outcome:
        text, cuts = trial
        (plain,) = super().run_all([(f"{text}{_PLAIN_ALONE}", cuts)])
        return outcome if plain.error else Outcome(gap=Gap(Form.RAISES, math.inf, _LIMIT, outcome.error))

    def _answers(self, trials: Sequence[Trial]) -> tuple[list[Results], list[Results]]:
        results, _ = super()._answers(trials)
        halves = [(one, one) if isinstance(one, str) else _halves(one) for one in results]
        return [got for _, got in halves], [expected for expected, _ in halves]

    def run(self, program: Program, expected: Sequence[torch.Tensor] | None = None) -> Outcome:
        """Run one program; a difference that rounding explains is none."""
        outcome = super().run(program, expected)
        if outcome.gap is None or outcome.gap.form is not Form.VALUES:
            return outcome
        if isinstance(program.way, OtherRows | OtherPositions):
            return outcome
        if isinstance(program.way, InFloat64):
            return _in_low_precision(program.way, outcome)
        return Outcome() if _is_explained(program, outcome) else outcome


_PLAIN_ALONE = "\n\ncompute = plain\n"
_LIMIT = 1e-5
"""Of a file whose other way raises: once it does not, such differences are none."""


def _halves(results: list[torch.Tensor]) -> tuple[Results, Results]:
    return results[: len(results) // 2], results[len(results) // 2 :]


def _in_low_precision(way: InFloat64, outcome: Outcome) -> Outcome:
    """Return the outcome with the limit of the type in low precision; no difference if the type explains it."""
    assert outcome.gap is not None  # noqa: S101 - the caller looked
    assert outcome.expected is not None  # noqa: S101
    assert outcome.got is not None  # noqa: S101
    exact, got = outcome.expected, outcome.got
    if way.least:
        is_explained = relative_error(got, exact) < way.least
    else:
        is_explained = judge(got, rounded(exact, way.dtype), exact, way.dtype).within
    largest = float(exact[exact.isfinite()].abs().max()) if exact.isfinite().any() else 1.0
    gap, lost = outcome.gap, int((exact.isfinite() & ~got.isfinite()).sum())
    limit = float(f"{min(gap.size / 4, OWN_ERROR[way.dtype]) * largest:.1e}")
    words = f"{lost} of {got.numel()} values are not finite, and are in float64" if lost else gap.words
    return Outcome() if is_explained else replace(outcome, gap=replace(gap, limit=limit, words=words))


def _is_explained(program: Program, outcome: Outcome) -> bool:
    """Return whether rounding explains a difference, by the float64 results of the plain calls if they have some."""
    assert outcome.gap is not None  # noqa: S101 - the caller looked
    assert outcome.expected is not None  # noqa: S101
    assert outcome.got is not None  # noqa: S101
    tensors = {name: stored(tensor) for name, tensor in program.inputs.items()}
    doubled = {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()}
    with preserved_global_state():
        exact = run(f"{program_text(program)}{_PLAIN_ALONE}", doubled)
    truth = exact[outcome.place] if not isinstance(exact, str) else None
    if truth is None or truth.dtype not in (torch.float64, torch.complex128) or truth.shape != outcome.expected.shape:
        return outcome.gap.size < OWN_ERROR.get(outcome.expected.dtype, 0.0)
    return judge(outcome.got, outcome.expected, truth).within
