"""Tells whether two passes that compute the same would also train the same, as far as a pass in eval mode shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from pytest_torchlens.baseline.align import StepAlignment
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.spelling import values_of

_DROPOUTS = frozenset(
    "dropout dropout1d dropout2d dropout3d alphadropout featurealphadropout featuredropout nativedropout".split()
)
_UNSHOWN = _DROPOUTS | {"rrelu", "detach", "data"}
"""Functions whose effect in training a pass in eval mode, or one without gradients, does not show."""
_FUSED = "scaleddotproductattention"
_PLACES_OF_DROPOUT = ("dropout_p", "4")

_OTHER = ""
"""In place of a step that one pass alone has."""


class _Signature(NamedTuple):
    """What a step does, which steps it reads, and which read it, by their ids in the second pass."""

    function: str
    values: frozenset[tuple[str, str]]
    reads: frozenset[str]
    readers: frozenset[str]


def trains_differently(aligned: StepAlignment) -> bool:
    """Return whether the second pass would train differently, though its values may be the same.

    It would if a dropout or its like, or a `detach`, came, went, moved, reads something else or is read by something
    else; or if a parameter was tied to another, or untied.
    """
    now = aligned.now_with_moves
    known = {name: name for name in now.values()}
    old, new = _signatures(aligned.before, now), _signatures(aligned.after, known)
    gone, came = old - new, new - old
    is_fused = _is_replaced(gone, _fused(aligned.after, known)) and _is_replaced(came, _fused(aligned.before, now))
    return bool(aligned.ties) or not is_fused


def _signatures(snapshot: Snapshot, now: Mapping[str, str]) -> Counter[_Signature]:
    """Return what each of these steps does, reads and is read by; steps that one pass alone has are all alike."""
    unshown = [step for step in snapshot.steps if step.function in _UNSHOWN and values_of(step).get("p") != "0"]
    readers: dict[str, set[str]] = {step.id: set() for step in unshown}
    for step in snapshot.steps:
        for edge in step.parents:
            if edge.parent in readers:
                readers[edge.parent].add(now.get(step.id, _OTHER))
    return Counter(
        _Signature(
            step.function,
            frozenset(values_of(step).items()),
            frozenset(now.get(edge.parent, _OTHER) for edge in step.parents),
            frozenset(readers[step.id]),
        )
        for step in unshown
    )


def _is_replaced(steps: Counter[_Signature], attentions: int) -> bool:
    """Return whether there is fused attention for each of these steps, a dropout amid steps that one pass alone has."""
    others = {_OTHER}
    amid = all(step.function in _DROPOUTS and step.reads == step.readers == others for step in steps)
    return amid and steps.total() <= attentions


def _fused(snapshot: Snapshot, now: Mapping[str, str]) -> int:
    """Count the calls of fused attention that this pass alone has, and that are given a probability of dropout.

    In eval mode that is 0 whatever it is in training: that it was given is all that a pass shows.
    """
    return sum(step.function == _FUSED and step.id not in now and _has_dropout(step) for step in snapshot.steps)


def _has_dropout(step: Step) -> bool:
    return any(text.partition("=")[0] in _PLACES_OF_DROPOUT for text in step.arguments)
