"""Checks that every operation the dispatcher ran is in the record."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture.calls import MissedOperation
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.generators import is_generator_state
from pytest_torchlens.capture.storage import is_fake
from pytest_torchlens.history.source import first_model_place
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.score import Where


def check_completeness(recording: Recording, where: Where) -> PartVerdict:
    """Return the verdict on a recording with a dispatch watch; not run for any other.

    What it counts as dispatcher operations are the recorded calls, each one, and the operations outside them.
    """
    score = Score("completeness", "dispatcher operations")
    if recording.num_dispatched is None:
        return PartVerdict(name=score.name, status=Status.NOT_RUN, reason=recording.why_unwatched)
    score.checked = recording.num_dispatched
    unaccounted = [missed for missed in recording.missed_operations if not _is_in_a_whole(missed)]
    for missed in unaccounted:
        score.fail(_missed_operation(missed, where))
    sources = () if unaccounted else recording.unknown_sources  # missed operations explain them
    unknown = [source for source in sources if not _is_uncomputed(source.live)]
    kept = [source for source in unknown if _is_kept_in_gradient(source, recording)]
    for source in unknown:
        if not _is_kept_in_gradient(source, recording):
            score.fail(_unknown_source(source, recording, where))
    verdict = dataclasses.replace(score.verdict(), notes=(*_escapes(recording), *recording.untraced))
    reasons = [_in_a_whole(missed, where) for missed in recording.missed_operations if _is_in_a_whole(missed)][:1]
    reasons += [_kept_in_gradient(source, recording, where) for source in kept[:1]]
    if not reasons or not verdict.status.ok:
        return verdict
    return dataclasses.replace(verdict, status=Status.UNPROVEN, reason="; ".join(reasons))


def _is_uncomputed(tensor: torch.Tensor) -> bool:
    """Return whether such a tensor tells nothing: it has no values, is a lazy zero, or the state of a generator."""
    return is_fake(tensor) or tensor._is_zerotensor() or is_generator_state(tensor)


_CAUSES = {"aten::set_": "Tensor.set_ gives a tensor other memory, which is not recorded"}


def _is_in_a_whole(missed: MissedOperation) -> bool:
    """Return whether something that is known to have run accounts for a missed operation."""
    return missed.by_node or missed.by_transform or bool(missed.inside)


def _in_a_whole(missed: MissedOperation, where: Where) -> str:
    if missed.by_node and not missed.inside:
        what = "forward may have called a node of the autograd graph"
        return f"{what} {_after(missed, where)}: no mode sees the {missed.name} in it"
    if missed.by_transform and not missed.inside:
        what = "a function transform that was made before the pass, as by torch.func.functionalize, ran"
        return f"{what} {missed.name} {_after(missed, where)}: its operations are not recorded"
    what = f"{missed.inside} called {missed.name} in code that no mode sees"
    return f"{what}, and is one operation: what it reads besides its arguments is not in the graph"


def _after(missed: MissedOperation, where: Where) -> str:
    return f"after {where.label(missed.call - 1)}" if missed.call else "before the first operation"


def _missed_operation(missed: MissedOperation, where: Where) -> Failure:
    inside = f", in {missed.where}" if missed.where else ""
    return Failure(
        operation=missed.name,
        message=f"{missed.name} ran {_after(missed, where)}{inside}, but no recorded operation did it",
        cause=_caller(missed),
        advice="call it as a torch function that a mode can see, or leave completeness out with a reason",
        source_place=first_model_place(missed.frames),
    )


def _caller(missed: MissedOperation) -> str:
    """Return what called a missed operation past the recorder, if it is known; else ``""``."""
    if missed.name in _CAUSES:
        return _CAUSES[missed.name]
    if missed.in_backward:
        return "autograd called it in a backward pass, which is not recorded"
    facts = [f"the mode {missed.mode} called it"] if missed.mode else []
    if missed.dispatch_disabled:
        facts.append("torch._C.DisableTorchFunction was in force, under which no function mode sees a call")
    return ", and ".join(facts)


def _is_kept_in_gradient(source: Source, recording: Recording) -> bool:
    """Return whether the source was made inside a recorded gradient: only code that autograd ran there can keep it."""
    number = source.made_inside
    return 0 <= number < len(recording.calls) and recording.calls[number].info.kind is Kind.GRADIENT


def _kept_in_gradient(source: Source, recording: Recording, where: Where) -> str:
    gradient, reader = where.label(source.made_inside), _reader(source, recording, where)
    return f"{reader} reads a tensor made inside {gradient}, where a hook or other code that autograd ran kept it"


def _reader(source: Source, recording: Recording, where: Where) -> str:
    """Return the label of the operation that reads a source first."""
    reader = source.since + 1
    return where.label(reader) if reader < len(recording.calls) else "output"


def _unknown_source(source: Source, recording: Recording, where: Where) -> Failure:
    reader, calls = source.since + 1, len(recording.calls)
    shape = tuple(source.live.shape)
    return Failure(
        operation=_reader(source, recording, where),
        message=f"a tensor of shape {shape} that it reads was made during the pass by no recorded operation",
        cause=_maker(source),
        advice="compute it in the forward pass, or have it returned there; or leave completeness out with a reason",
        source_place=where.source_place(reader) if reader < calls else None,
    )


def _maker(source: Source) -> str:
    if source.made_inside < 0:
        return ""
    return f"{source.maker} made it inside a recorded operation, which did not return it: a hook or a cache kept it"


def _escapes(recording: Recording) -> Iterator[str]:
    """Yield for each function how often it passed a value to Python, where the graph cannot follow it."""
    for name, count in Counter(escape.name for escape in recording.escapes).most_common():
        first = next(escape for escape in recording.escapes if escape.name == name)
        place = first_model_place(first.frames) or ""
        yield f"{name} handed {count} value{'s' * (count > 1)} to Python (first at {place})"
