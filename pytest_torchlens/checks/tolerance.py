"""Decides whether a difference is explained by rounding: by the error that the plain run itself has against float64."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.fills import fill_of
from pytest_torchlens.checks.fills import with_infinite_fill

K = 2.0
"""The error of another way may be so many times the error of the plain run."""
K_FEW = 3.0
"""The same in half precision, and of tensors with few elements, whose errors vary more."""
FEW = 1000
FLOOR = 4.0
"""Units in the last place of the RMS that are explained, whatever the error of the plain run."""
LARGEST = 4.0
"""The largest error of an element may be so many times what the largest of the plain run explains."""
VERY_FEW = 10
"""Of fewer elements the error of one pass may be small by chance, so that of others counts, too."""
MOVES = 4
"""So many others are tried, on inputs moved by one unit in the last place."""
K_VERY_FEW = 7.0
"""An error so many times the RMS of them comes by chance once in a thousand times."""
HALF = (torch.float16, torch.bfloat16)


class Judgement(NamedTuple):
    """How far a run is from float64, beside the plain run."""

    error: float
    reference_error: float
    limit: float
    within: bool
    is_count: bool = False
    """Whether the error is a number of discrete values that are other ones."""

    @property
    def excess(self) -> float:
        """How many times as large as explained the error is."""
        return self.error / self.limit if self.limit else (float("inf") if self.error else 0.0)


def judge(
    other: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype | None = None
) -> Judgement:
    """Return whether the error of another run is explained.

    The RMS error of `other` against `exact` may be k times that of `reference`, plus `FLOOR` eps of the RMS of `exact`;
    the largest error of an element `LARGEST` times as much of the largest errors.  Discrete values must be equal, and
    so must NaN and infinities, with their signs; the constant of a finite mask counts as an infinity.  Both k and eps
    are those of `dtype`: of the reference by default.
    """
    dtype = dtype or reference.dtype
    if other.shape != reference.shape:
        return Judgement(float("inf"), 0.0, 0.0, within=False)
    if is_discrete(reference):
        wrong = float((other.to(reference.device) != reference).sum())
        return Judgement(wrong, 0.0, 0.0, within=not wrong, is_count=True)
    one, two, truth = (in_doubles(tensor) for tensor in (other, reference, exact))
    if _all_finite(one):  # what overflows is no mask
        one, two, truth = with_infinite_fill(fill_of(two), one, two, truth)
    if not all(map(_all_finite, (one, two, truth))):
        finite = two.isfinite()
        if not torch.equal(one.isfinite(), finite) or not _same_infinities(one[~finite], two[~finite]):
            return Judgement(float("inf"), 0.0, 0.0, within=False)
        finite &= truth.isfinite()
        one, two, truth = one[finite], two[finite], truth[finite]
    if not truth.numel():
        return Judgement(0.0, 0.0, 0.0, within=True)
    k, floor = factor(reference, dtype), FLOOR * torch.finfo(dtype).eps
    one, two, size = one - truth, two - truth, rms(truth)
    error, own = rms(one), rms(two)
    limit = k * own + floor * size
    most = LARGEST * (k * _largest(two) + floor * max(_largest(truth), size))
    return Judgement(error, own, limit, within=error <= limit and _largest(one) <= most)


def is_plainly_explained(other: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return whether two runs differ by less than the floor, so that no float64 reference is needed to judge them.

    Then the error of the one is at most that of the other and the floor.
    """
    if is_discrete(reference) or other.shape != reference.shape or other.dtype is not reference.dtype:
        return False
    one, two = in_doubles(other), in_doubles(reference)
    if not one.numel() or not bool(one.isfinite().all() and two.isfinite().all()):
        return False
    if (fill := fill_of(two)) is not None:
        one, two = with_infinite_fill(fill, one, two)
        if not torch.equal(one.isinf(), two.isinf()):
            return False
        one, two = one[one.isfinite()], two[two.isfinite()]
    floor, apart = FLOOR * eps_of(reference), one - two
    largest = max(_largest(two), rms(two))
    return rms(apart) <= floor * rms(two) * (1 - floor) and _largest(apart) <= LARGEST * floor * largest * (1 - floor)


def factor(reference: torch.Tensor, dtype: torch.dtype | None = None) -> float:
    """Return k for a tensor; `dtype` is its own by default."""
    return K_FEW if (dtype or reference.dtype) in HALF or reference.numel() < FEW else K


def eps_of(tensor: torch.Tensor) -> float:
    """Return the distance from 1 to the next number of a tensor's dtype."""
    return torch.finfo(tensor.dtype).eps


def in_doubles(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor in float64 on the CPU; complex ones as pairs, in one more dimension."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double().cpu()


def _same_infinities(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether infinities and NaN are the same."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _all_finite(tensor: torch.Tensor) -> bool:
    return not tensor.numel() or math.isfinite(_largest(tensor))


def rms(tensor: torch.Tensor) -> float:
    """Return the root of the mean square of real numbers; 0 of none."""
    return float(torch.linalg.vector_norm(tensor)) / math.sqrt(tensor.numel() or 1)


def _largest(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, torch.inf))
