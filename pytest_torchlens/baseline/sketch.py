"""Reduces a tensor to a few hundred bytes, from which the size of a difference can be estimated."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from pytest_torchlens.baseline.precision import folded
from pytest_torchlens.baseline.precision import rounded
from pytest_torchlens.baseline.snapshot import Numbers

_BUCKETS = 31
"""A prime, as tensor widths are rarely multiples of one; the sketch has the sums of pairs of buckets."""
_PERIOD = 2**24 - 3
"""The pattern of buckets and signs repeats after this many elements (a prime)."""
_CHUNK = 2**16
_pattern = np.empty(0, dtype=np.uint8)


def numbers_of(tensor: torch.Tensor, digest: str, *, unstable: bool = False) -> Numbers:
    """Return the numbers of a tensor whose fingerprint is `digest`."""
    values = _values(tensor)
    if values is None or not values.size:
        return Numbers(digest=digest, unstable=unstable)
    found = Numbers(digest=digest, **_statistics(values), unstable=unstable)
    return rounded(found, is_float64=tensor.dtype in (torch.float64, torch.complex128))


def _values(tensor: torch.Tensor) -> npt.NDArray[Any] | None:
    """Return the elements in logical order, float32 or wider; None if the tensor has no array of numbers."""
    plain = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)
    if not plain:
        return None
    try:
        tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16, torch.float32) else torch.float64
        return _array(tensor.to(wide).contiguous())
    except (RuntimeError, TypeError, NotImplementedError):  # a tensor subclass without such elements
        return None


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's memory as an array; `Tensor.numpy` would leave the model's own memory unable to grow."""
    if not tensor.numel():
        return np.empty(0)
    kind: type[Any] = ctypes.c_float if tensor.dtype is torch.float32 else ctypes.c_double
    memory: Any = (kind * tensor.numel()).from_address(tensor.data_ptr())
    memory._owner = tensor  # keeps it alive as long as the array
    array: npt.NDArray[Any] = np.ctypeslib.as_array(memory)
    return array


@np.errstate(over="ignore", invalid="ignore")
def _statistics(values: npt.NDArray[Any]) -> dict[str, Any]:
    """Return statistics and sketch; values that are not finite count as zero in both, and are counted."""
    total = square = 0.0
    low, high = np.inf, -np.inf
    sums = np.zeros(2 * _BUCKETS)
    kinds: list[npt.NDArray[Any]] = []
    for start in range(0, values.size, _CHUNK):
        chunk = values[start : start + _CHUNK].astype(np.float64)
        finite = chunk
        if not np.isfinite(added := float(chunk.sum())):
            kinds.append(_kinds(chunk, start))
            finite, chunk = chunk[np.isfinite(chunk)], np.nan_to_num(chunk, nan=0.0, posinf=0.0, neginf=0.0)
            added = float(chunk.sum())
        total += added
        square += float(np.square(chunk).sum())
        low, high = min(low, finite.min(initial=np.inf)), max(high, finite.max(initial=-np.inf))
        sums += np.bincount(_bins(start, chunk.size), weights=chunk, minlength=2 * _BUCKETS)
    return {
        "mean": total / values.size,
        "rms": float(np.sqrt(square / values.size)),
        **({"low": float(low), "high": float(high)} if low <= high else {}),
        "sketch": folded([float(value) for value in sums[::2] - sums[1::2]]),
        **_holes(kinds),
    }


def _kinds(chunk: npt.NDArray[Any], start: int) -> npt.NDArray[Any]:
    """Return places and kinds of the values that are not finite: 1 for NaN, 2 and 3 for the infinities."""
    places = np.flatnonzero(~np.isfinite(chunk))
    odd = chunk[places]
    return np.stack([places + start, np.where(np.isnan(odd), 1, np.where(odd > 0, 2, 3))])


def _holes(kinds: list[npt.NDArray[Any]]) -> dict[str, Any]:
    if not kinds:
        return {}
    every = np.concatenate(kinds, axis=1).astype("<i8")
    nan = int((every[1] == 1).sum())
    return {"nan": nan, "inf": every.shape[1] - nan, "holes": xxhash.xxh3_64_hexdigest(every.tobytes())}


def _bins(start: int, size: int) -> npt.NDArray[Any]:
    """Return twice the bucket, plus one for a minus sign, of `size` positions from `start` on."""
    global _pattern  # noqa: PLW0603 - the same for every tensor: made once
    if _pattern.size < min(start + size, _PERIOD):
        more = np.arange(_pattern.size, min(max(start + size, 2 * _pattern.size), _PERIOD), dtype=np.uint64)
        _pattern = np.concatenate([_pattern, (_hashes(more) % np.uint64(2 * _BUCKETS)).astype(np.uint8)])
    begin = start % _PERIOD
    found = _pattern[begin : begin + size]
    return found if found.size == size else np.concatenate([found, _pattern[: size - found.size]])


def _hashes(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64-bit hashes (the finalizer of SplitMix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return hashed
