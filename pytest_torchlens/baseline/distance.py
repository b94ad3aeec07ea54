"""Measures how far two tensors are apart, from the numbers that a snapshot stores, and how far they may be.

The tolerance depends on the dtype and on the function that was computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.precision import least_difference
from pytest_torchlens.baseline.precision import resolution
from pytest_torchlens.baseline.precision import unit
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.snapshot import Weight
from pytest_torchlens.records import Environment

_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_PARTS = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
# From differences seen between versions, threads and CPU capabilities: see docs/regressions.md.
_OWN = {"float64": 4096.0, "float32": 64.0, "float16": 2.0, "bfloat16": 2.0}
_GRAPH = {"float64": 1e-11, "float32": 1e-4, "float16": 2e-2, "bfloat16": 0.15}
_OUTPUT = {"float64": 1e-11, "float32": 2e-5, "float16": 5e-3, "bfloat16": 2e-2}
_LONG_REDUCTION = 256
"""Terms of a sum; the rounding error of longer sums may be larger."""
_MACHINE, _TF32 = 2.0, 10.0


class Tolerance:
    """Limits on the largest difference, relative to the largest value; the RMS may be half as much.

    Parameters
    ----------
    conditions
        The user's limits, which replace the defaults.
    machines_differ
        Whether the numbers come from different CPUs or settings.
    environment
        Where the later numbers were measured.
    """

    def __init__(self, conditions: Conditions, machines_differ: bool, environment: Environment) -> None:
        self._conditions = conditions
        rounded = environment.device == "mps" or (
            environment.device != "cpu" and environment.settings.get("tf32") == "True"
        )
        self._factor = _TF32 if rounded else _MACHINE if machines_differ else 1.0

    def own(self, step: Step, terms: int) -> float:
        """Return how much an operation may differ on equal inputs; `terms` is the length of the sums in it."""
        dtype = _real(step.dtype)
        default = _OWN.get(dtype, 0.0) * _EPS.get(dtype, 0.0) * self._factor
        return self._limit("own", step, default * math.sqrt(max(1.0, terms / _LONG_REDUCTION)))

    def graph(self, step: Step) -> float:
        """Return how much an operation may differ if its inputs differ within tolerance."""
        return self._limit("graph", step, _GRAPH.get(_real(step.dtype), 0.0) * self._factor)

    def output(self, step: Step) -> float:
        """Return how much an output of the model may differ."""
        return self._limit("output", step, _OUTPUT.get(_real(step.dtype), 0.0) * self._factor)

    def _limit(self, name: str, step: Step, default: float) -> float:
        given = self._conditions.limit(name, step)
        return default if given is None else given


def _real(dtype: str) -> str:
    return _PARTS.get(dtype, dtype)


def is_exact(step: Step) -> bool:
    """Whether an operation returns whole numbers or truth values, which may not differ at all."""
    return _real(step.dtype) not in _EPS


def terms_of(step: Step, parents: list[Step], state: dict[str, Weight]) -> int:
    """Return roughly how many terms an operation sums up for each element."""
    weights = [state[edge.parent].shape for edge in step.reads if edge.parent in state]
    if weights:
        return math.prod(weights[0][1:])
    shrunk = [parent.size // max(step.size, 1) for parent in parents]
    inner = [parent.shape[-1] for parent in parents[:1] if len(parents) > 1 and parent.shape]
    return max([1, *shrunk, *inner])


_ONE_ELEMENT = 0.9
"""If one bucket has this share of the squared difference, the difference is taken to be one element's."""
_STEPS = 3
"""So many steps of rounding the sum of a bucket must differ by, for its share to be no accident of rounding."""


@dataclass(frozen=True)
class Error:
    """The difference of two tensors: its largest element relative to the largest value, its RMS relative to the RMS."""

    largest: float
    nrms: float

    def within(self, limit: float) -> bool:
        """Whether the limit allows it."""
        return self.largest <= limit and self.nrms <= limit / 2


NONE = Error(0.0, 0.0)


def error_between(before: Numbers, after: Numbers, size: int, scale: float = 0.0) -> Error | None:
    """Return the difference of two tensors of one shape; None if the stored numbers do not allow it.

    What the numbers are too coarse to show is taken to be as large as they could hide.

    Parameters
    ----------
    before, after
        What snapshots store of them.
    size
        Number of elements.
    scale
        The least value to divide by, for sums whose terms nearly cancel.
    """
    if not (before.sketch and after.sketch and size):
        return None
    differences = [new - old for old, new in zip(before.sketch, after.sketch, strict=True)]
    square = math.fsum(difference * difference for difference in differences)
    rounding = max(unit(before), unit(after))
    seen = [abs(new - old) - rounding for old, new in ((before.low, after.low), (before.high, after.high))]
    bucket = max(map(abs, differences))
    is_resolved = bucket >= _STEPS * max(least_difference(before.sketch), least_difference(after.sketch))
    alone = bucket if is_resolved and bucket * bucket > _ONE_ELEMENT * square else 0.0
    rms = math.sqrt(square / size)
    largest = max(*seen, alone, rms)
    least = resolution(before.sketch, after.sketch)
    whole = max(before.largest, after.largest, scale)
    return Error(max(_ratio(largest, whole), least), max(_ratio(rms, max(before.rms, scale)), least))


def _ratio(part: float, whole: float) -> float:
    if not math.isfinite(part):
        return math.inf
    return part / whole if whole else (math.inf if part else 0.0)
