"""The check ``repeat``: a second call gives the same output and leaves the same state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple
from typing import TypeVar

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.compare import values_at
from pytest_torchlens.checks.counters import Counted
from pytest_torchlens.checks.counters import Numbers
from pytest_torchlens.checks.draws import is_whole
from pytest_torchlens.checks.evidence import Unsteady
from pytest_torchlens.checks.first_call import FirstCallResult
from pytest_torchlens.checks.first_call import look_at_first_call
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.inputs import inputs_of
from pytest_torchlens.checks.inputs import other_inputs
from pytest_torchlens.checks.places import differing
from pytest_torchlens.checks.results import failed
from pytest_torchlens.checks.results import failure_at
from pytest_torchlens.checks.results import passed
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.subject import OTHER_VALUES
from pytest_torchlens.checks.subject import PLAIN
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import are_plainly_other
from pytest_torchlens.checks.vacuity import dependent_outputs
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

NAME = "repeat"
_STATEFUL = "the second call reads what the first one left in the model"
_RANDOM = "two calls from the same state and the same seed differ: the model is not deterministic"
_KEEP = (
    "keep nothing between calls that a later one reads; a cache must give what computing anew gives, and a counter "
    "belongs in train mode"
)
_SEED = (
    "draw random numbers from torch's generators, which a seed sets; torch.use_deterministic_algorithms(True) names "
    "the kernels that are not deterministic"
)

_CLONE = "write to no input: x = x.clone() before an operation in place"


def run(subject: Subject) -> CheckResult:
    """Call the model twice: one after the other if it is in eval mode, else both times from the same state."""
    in_a_row = not subject.is_training
    others = _others(subject) if in_a_row else None
    between: list[Outputs] = []
    runs = _in_a_row(subject, others, between) if in_a_row else [_alone(subject), _alone(subject)]
    if others is not None and _say_nothing(subject, runs[0].outputs, between):
        others, between = _others(subject), []
        runs = _in_a_row(subject, others, between)
    (first, state, _), (second, second_state, _) = runs
    if not first and not second:
        raise NotApplicableError("its output holds no tensor to compare")
    differ = differing_outputs(first, second)
    counted = Counted(subject, *(run.numbers for run in runs), calls=1 + len(between))
    changed = [name for name in state | second_state if state.get(name) != second_state.get(name)]
    changed = [name for name in changed if not counted.only_counts(name)]
    if not differ and (failure := counted.failure(first, _KEEP)):
        return failed(NAME, failure)
    if differ or changed:
        return _failure(subject, runs, differ, changed, others)
    subject.once(PLAIN, lambda: first)
    seen = _first_call(subject, others, next(iter(between), None))
    unseen = (*seen.unseen, *counted.unseen)
    if seen.failure is not None:
        return failed(NAME, seen.failure, unseen=unseen)
    return passed(NAME, len(first) + len(state), unit="outputs and states", unseen=unseen, notes=counted.notes)


_T = TypeVar("_T")


class _Run(NamedTuple):
    outputs: Outputs
    state: dict[str, str]
    numbers: Numbers | None = None


def _say_nothing(subject: Subject, first: Outputs, between: list[Outputs]) -> bool:
    """Return whether other values change no output, or raise, and those do that are drawn another way, which is set."""
    former, says_something = subject.draw, between and are_plainly_other(first, between[0])
    if not says_something and any(map(is_whole, inputs_of(subject).values())):
        with contextlib.suppress(NotApplicableError):
            dependent_outputs(subject)
    return subject.draw != former


def _first_call(subject: Subject, others: Arguments | None, after: Outputs | None) -> FirstCallResult:
    """Look at what the first call leaves; spare other checks the pass on other values, if it leaves nothing."""
    if subject.is_training:
        return FirstCallResult(
            unseen=("what it keeps from its first call: in train mode layers may initialise themselves then",)
        )
    if others is None:
        return FirstCallResult(unseen=("what a call leaves for other values: the inputs cannot be changed",))
    try:
        seen = look_at_first_call(subject, others, after)
    except NotApplicableError as reason:  # too little time or memory
        seen = FirstCallResult(unseen=(f"what it keeps from its first call: {reason}",))
    if after is not None:
        subject.once((*OTHER_VALUES, subject.draw), lambda: after)
    return seen


def _others(subject: Subject) -> Arguments | None:
    try:
        return other_inputs(subject)
    except NotApplicableError:
        return None


def _in_a_row(subject: Subject, others: Arguments | None, between: list[Outputs]) -> list[_Run]:
    """Return two runs, with a call on other values between them, whose outputs are added to `between`."""
    with subject.runs(way="called twice") as call:
        first, numbers = call(), Numbers(subject)
        between += _call_on_others(call, others)
        one = _Run(first, subject.state(), numbers)
        return [one, _Run(call(), subject.state(), Numbers(subject))]


def _call_on_others(call: Callable[..., _T], others: Arguments | None) -> list[_T]:
    """Return what a call on other values returns; nothing if the model does not take them."""
    try:
        return [] if others is None else [call(*others)]
    except ModelRaisedError:
        return []


def _alone(subject: Subject) -> _Run:
    with subject.runs(way="called twice") as call:
        return _Run(call(), subject.state())


def _failure(
    subject: Subject, runs: list[_Run], differ: list[str], changed: list[str], others: Arguments | None
) -> CheckResult:
    in_a_row = not subject.is_training
    is_random = bool(differ) and not (in_a_row and _repeats_from_the_start(subject, runs[0].outputs))
    if not differ:
        message = f"a second call changes {', '.join(changed[:3])} once more, in {_mode(subject)} mode"
        return failed(NAME, Failure(message=message, advice=_KEEP), compared=len(changed), unit="states")
    what = f"{output_name(differ[0])} differs in a second call"
    failure = _place(subject, what, others, in_a_row and not is_random)
    values = failure.values or values_at(differ[0], *(outputs for outputs, _, _ in runs))
    cause = _RANDOM if is_random else _STATEFUL + (f": {', '.join(changed[:3])} changed" if changed else "")
    advice = _SEED if is_random else _KEEP
    if written := [] if is_random or changed else _written_inputs(subject):
        cause, advice = f"a call writes to {', '.join(written[:3])}, which the second call reads", _CLONE
    return failed(
        NAME,
        Failure(
            operation=failure.operation,
            message=what,
            cause=cause,
            advice=advice,
            source_line=failure.source_line,
            source_place=failure.source_place,
            values=values,
        ),
        compared=len(differ),
        unseen=() if failure.operation else ("two recorded calls do not differ, so the operation is not known",),
    )


def _written_inputs(subject: Subject) -> list[str]:
    """Return the inputs that a call changes."""
    with subject.runs(way="called again") as call:
        before = {path: fingerprint(tensor) for path, tensor in inputs_of(subject).items()}
        call()
        return [f"input {path!r}" for path, tensor in inputs_of(subject).items() if fingerprint(tensor) != before[path]]


def _mode(subject: Subject) -> str:
    return "train" if subject.is_training else "eval"


def _repeats_from_the_start(subject: Subject, first: Outputs) -> bool:
    """Return whether a call from the state of the first one gives what that gave."""
    return not differing_outputs(first, subject.call(way="called again"))


def _place(subject: Subject, what: str, others: Arguments | None, in_a_row: bool) -> Failure:
    """Return the first operation that differs in two recorded calls."""
    if in_a_row:
        with subject.recordings(way="called twice", save=True) as run_recorded:
            one = run_recorded()
            _call_on_others(run_recorded, others)
            other = run_recorded()
    else:
        one, other = (subject.record(way="called twice", save=True) for _ in range(2))
    pair = next(differing(one, other), None)
    if pair is None:
        return Failure(message=what)
    if pair.other is None or pair.one is None:
        history, number = (other, pair.other) if pair.one is None else (one, pair.one)
        return failure_at(history, number, what, values="only one of the two calls runs this operation")
    subject.tools.witness(Unsteady(history=one, number=pair.one, other=other, other_number=pair.other, alive=subject))
    return failure_at(one, pair.one, what, values=_activations(one, other, pair.one, pair.other))


def _activations(one: ModelHistory, other: ModelHistory, first: int, second: int) -> str:
    pairs = zip(one.recording.calls[first].outputs, other.recording.calls[second].outputs, strict=False)
    texts = (
        values_text(before.tensor, after.tensor)
        for before, after in pairs
        if before.tensor is not None and after.tensor is not None
    )
    return next(filter(None, texts), "")
