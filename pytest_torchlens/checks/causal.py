"""The check ``causal``: the output at each position reads no input after it."""

from __future__ import annotations

from pytest_torchlens.checks.positions import Excerpt
from pytest_torchlens.checks.positions import Question
from pytest_torchlens.checks.positions import Region
from pytest_torchlens.checks.positions import unreached
from pytest_torchlens.checks.sequences import Sequence
from pytest_torchlens.checks.sequences import find_sequence
from pytest_torchlens.checks.sequences import says_causal
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.records import CheckResult

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
    """Change all inputs after a position, and compare each output before it bit for bit."""
    if not ids and not says_causal(subject.model):
        raise NotApplicableError(_NOT_SAID)
    given = find_sequence(subject, ids, dim, decoder=True)
    sequence = Sequence(dependent(given.subject), given.name, dim)
    at = _odd(sequence.length // 2)
    full, short = sequence.subject, sequence.of(sequence.part(0, at)).subject
    try:
        _ = short.outputs
    except ModelRaisedError as error:
        raise NotApplicableError(f"for the first {at} positions alone {error}") from error
    question = Question(
        NAME,
        f"when the inputs from position {at} on change",
        f"before position {at}",
        f"the first operation whose part before position {at} depends on a later input",
        _ADVICE,
    )
    changed = sequence.with_others(at, sequence.length - at)
    return unreached(question, Excerpt(full, short, Region(0, at, sequence.length)), changed)


def _odd(number: int) -> int:
    """Return an odd number, where no block of 2, 4 or 8 positions ends."""
    return number - 1 + number % 2
