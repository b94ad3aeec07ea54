"""Compares a model's outputs with the baseline's, whatever differs on the way to them."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_torchlens.baseline.distance import Tolerance
from pytest_torchlens.baseline.distance import error_between
from pytest_torchlens.baseline.distance import is_exact
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.records import OutputsComparison


def compare_outputs(
    before: Snapshot, after: Snapshot, blocks: tuple[EnvironmentNumbers, EnvironmentNumbers], tolerance: Tolerance
) -> OutputsComparison:
    """Compare outputs by their paths in the returned objects; of several the one that differs most is told."""
    if before.output != after.output:
        return OutputsComparison(reason="another object is returned")
    old, new = ([step for step in side.steps if step.function == "output"] for side in (before, after))
    if len(old) != len(new):
        return OutputsComparison(reason=f"{len(old)} tensors were returned, now {len(new)}")
    found = [
        _compare((first, second), (blocks[0].numbers.get(first.id), blocks[1].numbers.get(second.id)), tolerance)
        for first, second in zip(old, new, strict=True)
    ]
    return max(found, key=_badness, default=OutputsComparison(same=True, within=True))


def _compare(
    steps: tuple[Step, Step], numbers: tuple[Numbers | None, Numbers | None], tolerance: Tolerance
) -> OutputsComparison:
    step, (old, new) = steps[1], numbers
    if differences := list(_kinds(*steps)):
        return OutputsComparison(operation=step.id, reason="; ".join(differences))
    if old is None or new is None or not (old.digest and new.digest):
        return OutputsComparison(operation=step.id, reason="their values are not known")
    if old.digest == new.digest:
        return OutputsComparison(same=True, within=True, operation=step.id)
    error = error_between(old, new, step.size)
    if error is None or is_exact(step):
        return OutputsComparison(operation=step.id)
    holes = (old.nan, old.inf, old.holes) != (new.nan, new.inf, new.holes)
    limit = tolerance.output(step)
    return OutputsComparison(
        within=error.within(limit) and not holes,
        operation=step.id,
        error=error.largest,
        nrms=error.nrms,
        limit=limit,
        reason="other places are NaN or infinite" if holes else "",
    )


def _kinds(before: Step, after: Step) -> Iterator[str]:
    for name, old, new in (("shape", before.shape, after.shape), ("dtype", before.dtype, after.dtype)):
        if old != new:
            yield f"{name} {old} → {new}"


def _badness(found: OutputsComparison) -> tuple[bool, bool, float]:
    return not found.within, not found.same, found.error if found.error is not None else float(not found.same)
