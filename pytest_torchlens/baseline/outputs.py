"""Compares a model's outputs with the baseline's, whatever differs on the way to them."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_torchlens.baseline.align import outputs_of
from pytest_torchlens.baseline.align import pair_outputs
from pytest_torchlens.baseline.distance import Tolerance
from pytest_torchlens.baseline.distance import error_between
from pytest_torchlens.baseline.distance import is_exact
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.records import OutputsComparison


def compare_outputs(
    before: Snapshot,
    after: Snapshot,
    blocks: tuple[EnvironmentNumbers, EnvironmentNumbers] | None,
    tolerance: Tolerance,
) -> OutputsComparison | None:
    """Compare the returned objects and their tensors in order, and return the comparison of those that differ most.

    Without numbers only objects, shapes and dtypes are compared: None if they are the same.
    """
    if before.output != after.output:
        return OutputsComparison(reason="another object is returned")
    old, new = (len(outputs_of(side)) for side in (before, after))
    if old != new:
        return OutputsComparison(reason=f"{old} tensors were returned, now {new}")
    pairs = [(was, now) for was, now in pair_outputs(before, after) if was is not None and now is not None]
    for first, second in pairs:
        if differences := list(_kinds(first, second)):
            return OutputsComparison(operation=second.id, reason="; ".join(differences))
    if blocks is None:
        return None
    found = [
        _compare(second, blocks[0].numbers.get(first.id), blocks[1].numbers.get(second.id), tolerance)
        for first, second in pairs
    ]
    return max(found, key=_badness, default=OutputsComparison(same=True, within=True))


def _compare(step: Step, old: Numbers | None, new: Numbers | None, tolerance: Tolerance) -> OutputsComparison:
    if old is None or new is None or not (old.digest and new.digest):
        return OutputsComparison(operation=step.id, reason="their values are not known")
    if old.digest == new.digest:
        return OutputsComparison(same=True, within=True, operation=step.id)
    error = error_between(old, new, step.size)
    if error is None or is_exact(step):
        unknown = "" if is_exact(step) or (old.sketch and new.sketch) else "by how much is not known"
        return OutputsComparison(operation=step.id, reason=unknown)
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
