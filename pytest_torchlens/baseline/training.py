"""Tells whether two passes that compute the same would also train the same, as far as a pass in eval mode shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping

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

_Signature = tuple[object, ...]


def trains_differently(aligned: StepAlignment) -> bool:
    """Return whether the second pass would train differently, though its values may be the same.

    It would if a dropout or its like, or a `detach`, came, went, moved, reads something else or is read by something
    else; or if a parameter was tied to another, or untied.
    """
    before, after = aligned.before, aligned.after
    now = aligned.now_with_moves
    known = {name: name for name in now.values()}
    fused = [*_fused(aligned)]
    return bool(aligned.ties) or _signatures(before, now, fused) != _signatures(after, known, fused)


def _signatures(snapshot: Snapshot, now: Mapping[str, str], fused: list[Step]) -> Counter[_Signature]:
    """Return what each of these steps does, reads and is read by; steps that one pass alone has are all alike."""
    left_out = {id(step) for step in fused}
    unshown = [step for step in snapshot.steps if step.function in _UNSHOWN and id(step) not in left_out]
    readers: dict[str, set[str]] = {step.id: set() for step in unshown}
    for step in snapshot.steps:
        for edge in step.parents:
            if edge.parent in readers:
                readers[edge.parent].add(now.get(step.id, ""))
    return Counter(
        (
            step.function,
            frozenset(values_of(step).items()),
            tuple(now.get(edge.parent, "") for edge in step.parents),
            frozenset(readers[step.id]),
        )
        for step in unshown
    )


def _fused(aligned: StepAlignment) -> Iterator[Step]:
    """Yield the dropouts that fused attention, with an argument for its own dropout, replaced or was replaced by.

    In eval mode the argument is 0 for every probability, so that it was given is all that a pass shows.
    """
    for run in aligned.stretches():
        old = [both.before for both in run if both.before is not None]
        new = [both.after for both in run if both.after is not None]
        for steps, others in ((old, new), (new, old)):
            dropouts = [step for step in steps if step.function in _DROPOUTS]
            yield from dropouts[: sum(map(_has_dropout, others))]


def _has_dropout(step: Step) -> bool:
    return step.function == _FUSED and any(text.partition("=")[0] in _PLACES_OF_DROPOUT for text in step.arguments)
