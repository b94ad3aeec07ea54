"""Validates a call that a user's test made once, from its record, without running the model again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.calls import UNWATCHED
from pytest_torchlens.capture.function_tracer import overrides
from pytest_torchlens.capture.functions import is_operator
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.records import byte_size
from pytest_torchlens.validate.completeness import check_completeness
from pytest_torchlens.validate.invariants import check_invariants
from pytest_torchlens.validate.replay_check import Replay
from pytest_torchlens.validate.unobtrusive import hooks_and_modes_disabled
from pytest_torchlens.validate.validation import PARTS
from pytest_torchlens.validate.validation import Validation
from pytest_torchlens.validate.validation import verdict_on

ONCE = "forward is called once, by the test"


@dataclass(frozen=True)
class Bounds:
    """Limits of time and memory for one verdict.

    Attributes
    ----------
    until
        Deadline on the clock of `time.thread_time`, in seconds of CPU time.
    nbytes
        Limit on the estimated memory of the replay, in bytes.
    """

    until: float
    nbytes: int


def validate_once(history: ModelHistory, bounds: Bounds, parts: Collection[str] = PARTS) -> Validation:
    """Return the verdict on a call that was just recorded.

    Nothing changes for the test: model, inputs, results and random generators keep their state, and its modes and hooks
    see no operation.  A call is not replayed if that would run the test's own code again.

    Parameters
    ----------
    history
        The history of a recording that still has its output.
    bounds
        Limits of time and memory.
    parts
        As in `validate`; ``"observer"`` is not run.
    """
    start, recording = time.perf_counter(), history.recording
    with hooks_and_modes_disabled():
        returned = [fingerprint(tensor) for _, tensor in walk(recording.output)]
        verdicts = list(_verdicts(history, returned, bounds, parts))
        verdict = verdict_on(verdicts, time.perf_counter() - start, history, frozenset([ONCE, UNWATCHED]))
    cut_short = time.thread_time() > bounds.until or _replay_bytes(recording) > bounds.nbytes
    return Validation(verdict, history, cut_short)


def _verdicts(
    history: ModelHistory, returned: list[str], bounds: Bounds, parts: Collection[str]
) -> Iterator[PartVerdict]:
    recording = history.recording
    if "observer" in parts:
        yield PartVerdict(name="observer", status=Status.NOT_RUN, reason=ONCE)
    played = [part for part in ("replay", "perturbation") if part in parts]
    if reason := reason_not_to_replay(recording, bounds):
        yield from (PartVerdict(name=part, status=Status.NOT_RUN, reason=reason) for part in played)
    elif played:
        yield from _replay_verdicts(history, returned, bounds, played)
    if "invariants" in parts:
        yield check_invariants(history, restored=False)
    if "completeness" in parts:
        part = check_completeness(recording, history)
        unchecked = tuple(_open_questions(recording))
        notes = (*part.notes, *(f"not checked: {question}" for question in unchecked))
        yield dataclasses.replace(part, notes=notes, unchecked=unchecked)


def _open_questions(recording: Recording) -> Iterator[str]:
    """Yield what completeness cannot check here; `validate` runs a second pass for it."""
    if names := list(dict.fromkeys(call.info.name for call in recording.calls if call.info.opaque)):
        yield f"what {', '.join(names)} computed inside"
    if any(source.kind == "constant" and not source.maker for source in recording.sources):
        yield "whether each constant of the graph existed before the call"  # no number: the summary counts by reason


def _replay_verdicts(
    history: ModelHistory, returned: list[str], bounds: Bounds, parts: Collection[str]
) -> Iterator[PartVerdict]:
    with torch._C._EnableTorchFunction():
        replay = Replay(history.recording, history, parts, until=bounds.until)
        verdicts = replay.verdicts(returned)
        if replay.doubtful and not replay.out_of_time:
            replay = Replay(history.recording, history, parts, replay.doubtful, until=bounds.until)
            verdicts = replay.verdicts(returned)
    if replay.nondeterministic:
        reason = f"{replay.nondeterministic} does not repeat itself, and what it gave in the test was not kept"
        yield from (_with_status(part, Status.NOT_APPLICABLE, reason) for part in verdicts)
    elif replay.out_of_time:
        reason = "the time for this test was up"
        yield from (part if not part.status.ok else _with_status(part, Status.NOT_RUN, reason) for part in verdicts)
    else:
        yield from verdicts


def _with_status(part: PartVerdict, status: Status, reason: str) -> PartVerdict:
    return dataclasses.replace(part, status=status, reason=reason, failures=(), num_failures=0)


def reason_not_to_replay(recording: Recording, bounds: Bounds) -> str:
    """Return why a replay would run the test's own code or exceed the limits; ``""`` if it would not."""
    for call in recording.calls:
        if call.info.opaque or is_custom_operator(call):
            return f"{call.info.name} runs code of its own that would run again"
    for source in recording.sources:
        if type(source.live) is not torch.Tensor and overrides_dispatch(type(source.live)):
            return f"operations on a {type(source.live).__name__} run code of its own that would run again"
    if (needed := _replay_bytes(recording)) > bounds.nbytes:
        return f"the replay would hold about {byte_size(needed)}, and {byte_size(bounds.nbytes)} are allowed"
    return ""


def is_custom_operator(call: Call) -> bool:
    """Return whether a call ran an operator that Python code registered; a test may count its calls."""
    func = call.info.func
    if not is_operator(func):
        return False
    name = str(func)
    return not name.startswith(("aten.", "prim.", "torchvision.", "quantized.", "mkldnn."))


def overrides_dispatch(kind: type) -> bool:
    """Return whether a tensor class overrides ``__torch_function__`` or ``__torch_dispatch__``."""
    if kind.__module__.partition(".")[0] == "torch":
        return False
    return overrides(kind) or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def _replay_bytes(recording: Recording) -> int:
    """Estimate the bytes that autograd saves during the replay, plus copies of overwritten sources."""
    saved = sum(value.nbytes for call in recording.calls for value in call.outputs if value.requires_grad)
    return saved + sum(source.value.nbytes for source in recording.sources if source.written)
