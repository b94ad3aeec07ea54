"""Identifies the memory of a tensor, and finds whether two tensors share bytes of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.wrappers import inner_tensors


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number that all tensors over the same memory share, also through NumPy; 0 if it has none."""
    if type(tensor) in PLAIN and tensor.is_cpu and tensor.layout is torch.strided:
        try:
            address = 0 if tensor.storage_offset() else tensor.data_ptr()
        except RuntimeError:  # nested, or wrapped by functorch
            address = 0
        if address:
            return address
    storage = storage_of(tensor)
    try:
        return 0 if storage is None else (not _has_no_memory(tensor) and storage.data_ptr()) or -storage._cdata
    except RuntimeError:
        return 0


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one of ``FakeTensorMode``: a shape without values."""
    return type(tensor) is FakeTensor


def has_fake(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether one of the tensors is one of ``FakeTensorMode``."""
    return FakeTensor in map(type, tensors)


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of the first element; of a tensor without memory, its distance from the first byte."""
    return int(tensor.storage_offset()) * tensor.itemsize if _has_no_memory(tensor) else tensor.data_ptr()


def _has_no_memory(tensor: torch.Tensor) -> bool:
    """Return whether an address must not be asked for: PyTorch warns, also of the meta tensor in a fake one."""
    return is_fake(tensor) or tensor.is_meta


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor; of a sparse or jagged tensor that of its values, of a wrapper that of its part.

    It is the same object as long as the memory lives, for all tensors over it.
    """
    if type(tensor) not in PLAIN and (parts := inner_tensors(tensor)):
        return storage_of(parts[0])
    if tensor.layout is not torch.strided:
        values = _values_of(tensor)
        return None if values is None else storage_of(values)
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError, ValueError):  # such as a wrapper of no tensors
        return None


def is_freed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has elements but no memory: its storage was resized, or it is a lazy zero."""
    return bool(tensor.numel()) and not tensor.is_meta and (storage_key(tensor) < 0 or tensor._is_zerotensor())


def _values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.layout in _COMPRESSED:
        return tensor.values()
    values: torch.Tensor | None = tensor._values if tensor.layout is torch.jagged else None  # type: ignore[assignment]
    return values


_COMPRESSED = frozenset([torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])


class Extent(NamedTuple):
    """The bytes that a tensor covers: from `start` to before `stop`, with gaps given by shape and strides.

    They are counted from the start of the tensor's storage, and stay the same when the storage moves.
    """

    start: int
    stop: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int

    @property
    def dense(self) -> bool:
        """Whether it covers every byte between `start` and `stop`."""
        return _has_no_gaps(self.shape, self.stride)

    @property
    def run_and_step(self) -> tuple[int, int]:
        """Length of each gapless run of bytes, and the common divisor of the steps from run to run; 0 if one run."""
        return _run_and_step(self.shape, self.stride, self.itemsize)

    def covers(self, other: Extent) -> bool:
        """Return whether it certainly contains every byte of another."""
        return self == other or (self.dense and self.start <= other.start and other.stop <= self.stop)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Extent | None:
        """Return a tensor's extent; None if it has no address (meta, sparse, wrapper)."""
        if tensor.is_nested:
            return None
        try:
            address_of(tensor)  # raises if there is none
            itemsize, shape, stride = tensor.itemsize, tuple(tensor.shape), tensor.stride()
            start = int(tensor.storage_offset()) * itemsize
        except (RuntimeError, NotImplementedError):
            return None
        return cls(start, start + _reach(shape, stride) * itemsize, shape, stride, itemsize)


@functools.lru_cache(maxsize=1024)
def _has_no_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride > step:
            return False
        step = max(step, stride * size) if size > 1 else step
    return 0 not in shape


@functools.lru_cache(maxsize=1024)
def _run_and_step(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    run, step = itemsize, 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride * itemsize <= run:
            run += stride * itemsize * (size - 1)
        elif size > 1:
            step = math.gcd(step, stride * itemsize)
    return run, step


def memory_place(tensor: torch.Tensor) -> tuple[int, Extent | None]:
    """Return which bytes of which memory a tensor covers."""
    with torch._C.DisableTorchFunction():
        return storage_key(tensor), Extent.of(tensor)


def reach(tensor: torch.Tensor) -> int:
    """Return the number of elements in memory from a strided tensor's first to its last element."""
    return _reach(tuple(tensor.shape), tensor.stride())


@functools.lru_cache(maxsize=1024)
def _reach(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


_EXACT_UP_TO = 1 << 20


def overlap(one: Extent | None, other: Extent | None) -> bool:
    """Return whether two tensors may share a byte; True also where an exact answer is expensive."""
    if one is None or other is None:
        return True
    if one.stop <= other.start or other.stop <= one.start:
        return False
    if _runs_fit_in_gaps(one, other):
        return False
    if _has_an_end_in(one, other) or _has_an_end_in(other, one):
        return True
    if max(one.stop - one.start, other.stop - other.start) > _EXACT_UP_TO:
        return True
    start = min(one.start, other.start)
    length = max(one.stop, other.stop) - start
    return bool((_mask(one, start, length) & _mask(other, start, length)).any())


def _runs_fit_in_gaps(one: Extent, other: Extent) -> bool:
    """Return whether all runs of one lie in gaps of the other, like two columns of a matrix."""
    (run, step), (other_run, other_step) = one.run_and_step, other.run_and_step
    common = math.gcd(step, other_step)
    return bool(common) and run <= (other.start - one.start) % common <= common - other_run


def _has_an_end_in(one: Extent, dense: Extent) -> bool:
    """Return whether the other has no gaps and contains the first or last byte of one."""
    return dense.dense and (dense.start <= one.start < dense.stop or dense.start < one.stop <= dense.stop)


def _mask(extent: Extent, start: int, length: int) -> torch.Tensor:
    covers = torch.zeros(length, dtype=torch.bool, device="cpu")
    steps = [step * extent.itemsize for step in extent.stride]
    window = covers.as_strided((*extent.shape, extent.itemsize), (*steps, 1), extent.start - start)
    window.fill_(True)
    return covers
