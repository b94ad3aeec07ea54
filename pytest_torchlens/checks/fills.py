"""Tells the constant that a finite mask leaves, as -1e9 among logits: it is no size of the values beside it."""

from __future__ import annotations

import math

import torch

_LEAST = 1e3
"""Smaller constants are values."""
_ENORMOUS = 1e8
"""Such a constant may occur once; smaller ones may be an activation."""
_SWAMPS = 1e3
"""A constant is a fill if it is so many times the RMS of all else."""
_NEAR = 0.01
"""In another dtype, or with a value added to it, it is off by no more than this part."""


def fill_of(tensor: torch.Tensor) -> float | None:
    """Return the constant in a tensor of float64 that swamps all else in it; None if there is none."""
    if not tensor.numel() or not bool(tensor.isfinite().all()):
        return None
    least, largest = float(tensor.min()), float(tensor.max())
    fill = least if abs(least) > abs(largest) else largest
    if abs(fill) < _LEAST:
        return None
    others = tensor[tensor != fill]
    if abs(fill) < _ENORMOUS and tensor.numel() - others.numel() == 1:
        return None
    size = float(torch.linalg.vector_norm(others)) / math.sqrt(max(1, others.numel()))
    return fill if others.numel() and abs(fill) > _SWAMPS * size else None


def with_infinite_fill(fill: float | None, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors with infinity in place of a fill, as a mask that is infinite leaves it."""
    if fill is None:
        return tensors
    infinite = math.copysign(math.inf, fill)
    return tuple(tensor.masked_fill((tensor - fill).abs() <= _NEAR * abs(fill), infinite) for tensor in tensors)
