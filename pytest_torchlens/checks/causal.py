"""The check ``causal``: the output at each position reads no input after it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pytest_torchlens.checks.compare import compare_each
from pytest_torchlens.checks.cuts import chosen_cuts
from pytest_torchlens.checks.cuts import suspected_cuts
from pytest_torchlens.checks.positions import Excerpt
from pytest_torchlens.checks.positions import Question
from pytest_torchlens.checks.positions import Region
from pytest_torchlens.checks.positions import changed_outputs
from pytest_torchlens.checks.positions import unreached
from pytest_torchlens.checks.sequences import Sequence
from pytest_torchlens.checks.sequences import find_sequence
from pytest_torchlens.checks.sequences import says_causal
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.checks.vacuity import depending
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus

NAME = "causal"
_ADVICE = (
    "mask the attention over later positions (is_causal=True, or a triangular mask that reaches the kernel), pad "
    "convolutions on the left alone, and reduce over no positions; scans go forwards"
)
_NOT_SAID = (
    "nothing says that the model is causal (config.is_decoder, a class …ForCausalLM, is_causal of its attention); "
    "'ids' among its options names the input that is the sequence, which says so"
)


def run(subject: Subject, ids: str = "", dim: int = 1) -> CheckResult:
    """Change all inputs after some positions, and compare each output before them bit for bit."""
    if not ids and not says_causal(subject.model):
        raise NotApplicableError(_NOT_SAID)
    given = find_sequence(subject, ids, dim, decoder=True)
    sequence = _dependent(given)
    middle = _odd(sequence.length // 2)
    short = sequence.of(sequence.part(0, middle)).subject
    try:
        _ = short.outputs
    except ModelRaisedError as error:
        raise NotApplicableError(f"for the first {middle} positions alone {error}") from error
    known = (middle, 1, sequence.length - 1)
    result = compare_each(NAME, {f"position {at}": partial(_cut, sequence, short, at) for at in known})
    return result if result.status is not CheckStatus.PASSED else _at_more_cuts(sequence, short, {*known}, result)


def _at_more_cuts(sequence: Sequence, short: Subject, known: set[int], result: CheckResult) -> CheckResult:
    """Return the failure at one of more positions, which were looked at together; else the result, and what was not."""
    cuts = chosen_cuts(sequence.length, known)
    left = sequence.length - 1 - len({*cuts, *known})
    try:
        shown = short.kwargs[sequence.name].size(sequence.dim)
        suspected = suspected_cuts(sequence, short.outputs, shown, cuts, _depend(sequence)) if cuts else []
        for at in suspected[:_MOST_CONFIRMED]:
            confirmed = _cut(sequence, short, at)
            if confirmed.status is CheckStatus.FAILED:
                return confirmed
        left += len(suspected[_MOST_CONFIRMED:])
        unseen = f"what is read across {left} of {sequence.length - 1} positions" if left else ""
    except NotApplicableError as reason:
        unseen = f"what is read across other positions than {', '.join(map(str, sorted(known)))}: {reason}"
    return replace(result, unseen=(*result.unseen, *([unseen] if unseen else [])))


_MOST_CONFIRMED = 3
"""A model that mixes the examples of a batch is suspected everywhere, and rightly nowhere."""


def _dependent(given: Sequence) -> Sequence:
    """Return the sequence for a model with an output that depends on what comes after the first position."""

    def find(subject: Subject) -> set[str]:
        return _depend(Sequence(subject, given.name, given.dim))

    try:
        return Sequence(dependent(given.subject, find), given.name, given.dim)
    except NotApplicableError as error:
        raise NotApplicableError(f"when the inputs after the first position change: {error}") from error


def _cut(sequence: Sequence, short: Subject, at: int) -> CheckResult:
    """Change all inputs from a position on; `short` shows which dimensions are positions."""
    region = Region(0, at, sequence.length, shown=short.kwargs[sequence.name].size(sequence.dim))
    excerpt = Excerpt(sequence.subject, short, region)
    return unreached(_question(at), excerpt, _others_from(sequence, at), depend=_depend(sequence))


def _depend(sequence: Sequence) -> set[str]:
    """Return the outputs that depend on the inputs after the first position."""
    changed = changed_outputs(sequence.subject, _others_from(sequence, 1), _question(1).way)
    return depending(sequence.subject, changed)


def _others_from(sequence: Sequence, at: int) -> dict[str, Any]:
    return sequence.with_others(at, sequence.length - at)


def _question(at: int) -> Question:
    return Question(
        NAME,
        f"when the inputs from position {at} on change",
        f"before position {at}",
        f"the first operation whose part before position {at} depends on a later input",
        _ADVICE,
    )


def _odd(number: int) -> int:
    """Return an odd number, where no block of 2, 4 or 8 positions ends."""
    return number - 1 + number % 2
