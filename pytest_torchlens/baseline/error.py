"""How far two tensors are apart, from what is kept of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_torchlens.baseline.snapshot import Numbers

_ALONE = 0.9
"""Share of a difference in one bucket from which on it is taken for that of one element."""


@dataclass(frozen=True)
class Error:
    """A difference: its largest, relative to the largest value, and its RMS, relative to theirs."""

    largest: float
    nrms: float

    def within(self, limit: float) -> bool:
        """Whether it is tolerated."""
        return self.largest <= limit and self.nrms <= limit / 2

    def or_more(self, other: Error) -> Error:
        """Return the larger of two."""
        return Error(max(self.largest, other.largest), max(self.nrms, other.nrms))


NONE = Error(0.0, 0.0)


def error_between(before: Numbers, after: Numbers, size: int, scale: float = 0.0) -> Error | None:
    """Return the difference of two tensors of one shape; None where it cannot be told.

    Parameters
    ----------
    before, after
        What is kept of them.
    size
        Number of elements.
    scale
        A largest value to relate it to at least, for sums whose terms nearly cancel.
    """
    if not (before.sketch and after.sketch and size):
        return None
    steps = [new - old for old, new in zip(before.sketch, after.sketch, strict=True)]
    square = math.fsum(step * step for step in steps)
    seen = [abs(new - old) for old, new in zip(before.samples, after.samples, strict=True) if _finite(new, old)]
    bucket = max(map(abs, steps))
    alone = bucket if bucket * bucket > _ALONE * square else 0.0
    rms = math.sqrt(square / size)
    largest = max([*seen, abs(after.low - before.low), abs(after.high - before.high), alone, rms])
    return Error(_ratio(largest, max(before.largest, after.largest, scale)), _ratio(rms, max(before.rms, scale)))


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _ratio(part: float, whole: float) -> float:
    if not math.isfinite(part):
        return math.inf
    return part / whole if whole else (math.inf if part else 0.0)
