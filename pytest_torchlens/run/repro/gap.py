"""Measures how far a result is from the expected one."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch

OWN_ERROR = {torch.float64: 2.0**-40, torch.float32: 2.0**-17, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
_PARTS = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}
_KEPT = 0.25
"""A smaller input shows the same fault if it shows at least this part of the difference."""


class Form(enum.Enum):
    """What differs."""

    VALUES = "values"
    FORM = "shape, dtype or strides"
    REPEATS = "values of each run"
    GRADIENTS = "gradients of the inputs"
    RAISES = "an error in place of a result"


@dataclass(frozen=True)
class Gap:
    """The difference between two results.

    Attributes
    ----------
    form
        What differs.
    size
        Largest difference relative to the largest expected value; infinite where one of both is not finite.
    limit
        How large a difference of a later run still counts as none, absolute.
    words
        What differs, in one phrase.
    """

    form: Form
    size: float
    limit: float = 0.0
    words: str = ""

    def shows_in(self, other: Gap | None) -> bool:
        """Return whether another difference is of the same kind, and not much smaller."""
        return other is not None and other.form is self.form and other.size >= self.size * _KEPT


def gap_between(expected: torch.Tensor, got: torch.Tensor) -> Gap | None:
    """Return the difference; None if the results are equal, NaN to NaN."""
    if (expected.shape, expected.dtype) != (got.shape, got.dtype):
        return Gap(Form.FORM, math.inf, words=f"{_form(got)}, expected {_form(expected)}")
    one, other = _wide(expected), _wide(got)
    wrong = ~torch.isclose(other, one, rtol=0, atol=0, equal_nan=True)
    if wrong.any():
        return _of_values(expected, one, other, wrong)
    if expected.stride() != got.stride():
        return Gap(Form.FORM, math.inf, words=f"strides {got.stride()}, expected {expected.stride()}")
    return None


def _of_values(expected: torch.Tensor, one: torch.Tensor, other: torch.Tensor, wrong: torch.Tensor) -> Gap:
    scale = float(one[one.isfinite()].abs().max()) if one.isfinite().any() else 0.0
    largest = float((other - one)[wrong].abs().nan_to_num(math.inf).max())
    size = largest / (scale or 1.0)
    limit = min(size * _KEPT, OWN_ERROR.get(_PARTS.get(expected.dtype, expected.dtype), 0.0)) * (scale or 1.0)
    words = (
        f"{int(wrong.sum())} of {wrong.numel()} values differ, by up to {largest:.2g} ({size:.1e} of the largest value)"
    )
    return Gap(Form.VALUES, size, float(f"{limit:.1e}"), words)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
