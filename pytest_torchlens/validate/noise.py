"""Other values for a tensor, cheap to make and in the range that its consumers can bear."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class Noise:
    """Makes perturbed copies of tensors from one table of factors, drawn once from a generator of its own."""

    def __init__(self) -> None:
        self._factors = torch.empty(0)

    @torch.no_grad()
    def variants(self, tensor: torch.Tensor, gentle: bool = False) -> Iterator[torch.Tensor]:
        """Yield tensors of the same shape, dtype and strides with other values, the mildest first.

        Floats are first scaled by factors between 0.5 and 1, which keeps signs, zeros and indices in range; then
        reflected; then replaced.  Integers are reordered among themselves, then moved to the other end of their
        range.  `gentle` stops after the first.  Sparse and nested tensors are halved; others that cannot be
        computed with (quantized, meta) yield nothing.
        """
        if not is_dense(tensor):
            yield from _halved(tensor)
        elif not tensor.numel():
            return
        elif tensor.dtype is torch.bool:
            yield tensor.logical_not()
        elif tensor.is_floating_point() or tensor.is_complex():
            yield from self._floats(tensor, gentle)
        else:
            yield from _integers(tensor, gentle)

    @torch.no_grad()
    def all_different(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return other values with, for floats, no zeros and no two alike; None if there are none."""
        if is_dense(tensor) and tensor.is_floating_point() and tensor.numel():
            return _written(tensor, self._like(tensor) * torch.where(tensor == 0, 1, tensor))
        return next(self.variants(tensor, gentle=True), None)

    def _floats(self, tensor: torch.Tensor, gentle: bool) -> Iterator[torch.Tensor]:
        factors = self._like(tensor)
        yield _written(tensor, factors * tensor)
        if gentle:
            return
        yield _written(tensor, torch.where(tensor == 0, factors, -tensor))
        finite = torch.nan_to_num(tensor.abs(), nan=0.0, posinf=0.0) if not tensor.is_complex() else tensor.abs()
        largest = float(finite.max())
        for scale in (8.0 * (largest or 1.0), 1e4):
            yield _written(tensor, (factors - 0.75) * scale)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        count = tensor.numel()
        if self._factors.numel() < count:
            generator = torch.Generator().manual_seed(0)
            self._factors = torch.empty(count, dtype=torch.float32).uniform_(0.5, 1.0, generator=generator)
        kind = tensor.real.dtype if tensor.is_complex() else tensor.dtype
        return self._factors[:count].view(tensor.shape).to(device=tensor.device, dtype=kind)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an ordinary block of numbers."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)


def _halved(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.is_quantized or tensor.is_meta:
        return
    with contextlib.suppress(RuntimeError, NotImplementedError):
        yield tensor * 0.5


def _integers(tensor: torch.Tensor, gentle: bool) -> Iterator[torch.Tensor]:
    yield _written(tensor, tensor.flatten().flip(0).view(tensor.shape))
    if gentle:
        return
    low, high = tensor.min(), tensor.max()
    if low != high:
        yield _written(tensor, torch.where(tensor == high, low, high))
        yield torch.full_like(tensor, high.item())
    elif low != 0:
        yield _written(tensor, torch.zeros_like(tensor))
    else:
        yield _written(tensor, torch.ones_like(tensor))


def _written(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return `values` laid out in memory as `tensor` is."""
    if values.stride() == tensor.stride() and values.dtype == tensor.dtype:
        return values
    laid_out = torch.empty_like(tensor, memory_format=torch.preserve_format)
    return laid_out.copy_(values)
