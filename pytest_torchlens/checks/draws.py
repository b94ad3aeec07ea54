"""Draws other values of the same kind for a tensor of a model's inputs."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Way(NamedTuple):
    """A way to draw other values.

    Attributes
    ----------
    whole
        Whole numbers become the same in another order (``shuffled``), some of them more often than others
        (``resampled``), any from the least to the largest (``between``), or stay (``kept``).
    keeps_ordered
        Whether those that are in order (places, lengths, sizes) stay.
    is_far
        Whether real numbers are drawn far out.
    """

    whole: str
    keeps_ordered: bool = False
    is_far: bool = False


WAYS = (
    Way("shuffled"),
    Way("shuffled", keeps_ordered=True),
    Way("resampled"),
    Way("resampled", keeps_ordered=True),
    Way("between", keeps_ordered=True),
    Way("kept"),
    *[Way("between", keeps_ordered=True, is_far=True)] * 3,
)
"""Each is for models that do not take values drawn in those before it, or give the same for them."""
BEYOND = 4.0
"""Real numbers that are to exceed the range of others are multiplied by this."""
_LARGEST = torch.iinfo(torch.int64).max
_TABLE = 2
"""Dimensions of an example's whole numbers in a row; with more, the last one is a tuple (a box), which stays whole."""
_FEWEST = 3
"""Distinct whole numbers, one of which is between the least and the largest."""


def other_values(tensor: torch.Tensor, seed: int, draw: int = 0) -> torch.Tensor:
    """Return other values in the range of a tensor's own, drawn in one of the `WAYS`.

    Truth values, whole numbers that are all the same, and those that count up (positions) stay as they are; so do
    tensors that hold infinities, which are masks, and sparse ones.
    """
    tensor, way = tensor.detach(), WAYS[draw]
    if tensor.layout is not torch.strided:
        return tensor
    generator = torch.Generator().manual_seed(seed)
    if tensor.is_complex():
        return torch.view_as_complex(other_values(torch.view_as_real(tensor.resolve_conj()), seed, draw))
    if tensor.is_floating_point():
        flat = tensor.reshape(-1)
        made = _mixed_with_noise(flat, flat[_permuted(flat, 0, generator)], generator).reshape(tensor.shape)
        return made if not way.is_far else _far_out(tensor, made, generator.manual_seed(seed + draw))
    if way.whole == "kept" or tensor.dtype is torch.bool or not tensor.dim():
        return tensor
    return _other_whole(tensor.long(), way, generator).to(tensor.dtype)  # those without sign wrap, or lack functions


def _other_whole(tensor: torch.Tensor, way: Way, generator: torch.Generator) -> torch.Tensor:
    if _counts_up(tensor):
        return tensor
    dim = -1 if tensor.dim() <= _TABLE else -2
    in_order = _in_order(tensor, dim)
    if in_order and way.keeps_ordered:
        return tensor
    if way.whole == "between":
        end = min(int(tensor.max()), _LARGEST - 1) + 1
        numbers = torch.randint(min(int(tensor.min()), end - 1), end, tensor.shape, generator=generator)
        return numbers.to(tensor)
    if way.whole == "shuffled":
        return tensor.index_select(dim, _permuted(tensor, dim, generator))
    chosen = _resampled(tensor.size(dim), generator)
    return tensor.index_select(dim, (chosen.sort().values if in_order else chosen).to(tensor.device))


def small_number(tensor: torch.Tensor) -> torch.Tensor:
    """Return 0 or 1 in place of whole numbers, another than they are; other values stay."""
    tensor = tensor.detach()
    return (1 - tensor.long().clamp(0, 1)).to(tensor.dtype) if is_whole(tensor) else tensor


def without_extremes(tensor: torch.Tensor) -> torch.Tensor:
    """Return whole numbers without their least and largest, which become one between; other values stay."""
    if not is_whole(tensor) or not 0 < tensor.dim() <= _TABLE:
        return tensor
    whole = tensor.detach().long()
    distinct = whole.unique()  # type: ignore[no-untyped-call]
    if distinct.numel() < _FEWEST or _in_order(whole, -1):
        return tensor
    at_ends = (whole == distinct[0]) | (whole == distinct[-1])
    return torch.where(at_ends, distinct[distinct.numel() // 2], whole).to(tensor.dtype)


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds whole numbers."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def beyond(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return values drawn for a tensor, beyond its range if they are real numbers; those of a mask stay."""
    return scaled(tensor, made, BEYOND)


def scaled(tensor: torch.Tensor, made: torch.Tensor, factor: float) -> torch.Tensor:
    """Return values drawn for a tensor, so many times as large if they are real numbers; those of a mask stay."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or bool(((tensor == 0) | (tensor == 1)).all()):
        return made
    return made * factor


def _far_out(tensor: torch.Tensor, made: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return values around those made, some times as far apart as those of a tensor, unless it is a mask."""
    if beyond(tensor, made) is made or not bool(made.isfinite().all()) or not made.numel():
        return made
    span = float(made.max()) - float(made.min())
    noise = torch.randn(made.shape, generator=generator, dtype=torch.float64).to(made.device)
    return (made.double() + noise * BEYOND * span).to(made.dtype)


def _permuted(tensor: torch.Tensor, dim: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(tensor.size(dim), generator=generator).to(tensor.device)


def _resampled(size: int, generator: torch.Generator) -> torch.Tensor:
    """Return places, at least one of which occurs twice, if there are two."""
    chosen = torch.randint(size, (size,), generator=generator)
    if size > 1 and len({*chosen.tolist()}) == size:
        chosen[0] = chosen[1]
    return chosen


def _mixed_with_noise(flat: torch.Tensor, mixed: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not flat.numel() or not bool(flat.isfinite().all()):
        return flat
    low, high = float(flat.min()), float(flat.max())
    span = high - low or max(abs(low), 1.0) / 2
    noise = torch.rand(flat.shape, generator=generator, dtype=torch.float64).to(flat.device) * span + low
    return ((mixed.double() + noise) / 2).to(flat.dtype)


def _counts_up(tensor: torch.Tensor) -> bool:
    earlier, later = _neighbours(tensor, -1)
    return bool(later.numel()) and bool(((later - earlier == 1) & (later > earlier)).all())


def _in_order(tensor: torch.Tensor, dim: int) -> bool:
    earlier, later = _neighbours(tensor, dim)
    return bool((later >= earlier).all()) or bool((later <= earlier).all())


def _neighbours(tensor: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all values but the last and all but the first, whose difference may be too large for their type."""
    count = max(0, tensor.size(dim) - 1)
    return tensor.narrow(dim, 0, count), tensor.narrow(dim, tensor.size(dim) - count, count)
