"""Which tensors share memory, what was written where, and values kept by reference until a write is about to hit."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import torch

from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import Value


@dataclass(frozen=True)
class Extent:
    """The bytes that a tensor covers: from `start` to before `stop`, in steps given by shape and strides."""

    start: int
    stop: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int

    @functools.cached_property
    def dense(self) -> bool:
        """Whether it covers every byte between `start` and `stop`."""
        step = 1
        for stride, size in sorted(zip(self.stride, self.shape, strict=True)):
            if size > 1 and stride > step:
                return False
            step = max(step, stride * size) if size > 1 else step
        return 0 not in self.shape

    def covers(self, other: Extent) -> bool:
        """Return whether it is sure to have every byte of another."""
        return self == other or (self.dense and self.start <= other.start and other.stop <= self.stop)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Extent | None:
        """Return a tensor's extent; None where it has no address (meta, sparse, wrapper)."""
        if tensor.is_nested:
            return None
        try:
            start, shape, stride = tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
        except (RuntimeError, NotImplementedError):
            return None
        reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else -1
        return cls(start, start + (reach + 1) * tensor.itemsize, shape, stride, tensor.itemsize)


_EXACT_UP_TO = 1 << 20


def overlap(one: Extent | None, other: Extent | None) -> bool:
    """Return whether two tensors have a byte in common; yes where it cannot be told cheaply."""
    if one is None or other is None:
        return True
    if one.stop <= other.start or other.stop <= one.start:
        return False
    if _has_an_end_in(one, other) or _has_an_end_in(other, one):
        return True
    if max(one.stop - one.start, other.stop - other.start) > _EXACT_UP_TO:
        return True
    start = min(one.start, other.start)
    length = max(one.stop, other.stop) - start
    return bool((_mask(one, start, length) & _mask(other, start, length)).any())


def _has_an_end_in(one: Extent, dense: Extent) -> bool:
    """Return whether the first or last byte of one is among the bytes of the other, if that has no gaps."""
    return dense.dense and (dense.start <= one.start < dense.stop or dense.start < one.stop <= dense.stop)


def _mask(extent: Extent, start: int, length: int) -> torch.Tensor:
    covered = torch.zeros(length, dtype=torch.bool, device="cpu")
    steps = [step * extent.itemsize for step in extent.stride]
    window = covered.as_strided((*extent.shape, extent.itemsize), (*steps, 1), extent.start - start)
    window.fill_(True)
    return covered


class WriteLog:
    """The writes to one memory that still show: a later one to all of the same bytes takes the place of the earlier.

    What the later one took from the earlier one it has read, and depends on by itself.
    """

    def __init__(self) -> None:
        self._writes: dict[Any, tuple[int, Value, Extent | None]] = {}
        self.latest = -1
        """Number of the last call that wrote."""

    def add(self, number: int, value: Value, extent: Extent | None) -> None:
        """Note that call `number` wrote `value` there."""
        self.latest = number
        if extent is not None:
            self._writes.pop(extent, None)
            if extent.dense and len(self._writes) <= _FEW:
                self._forget_covered(extent)
        self._writes[extent or object()] = number, value, extent

    def _forget_covered(self, extent: Extent) -> None:
        for key, (_, _, former) in list(self._writes.items()):
            if former is not None and extent.covers(former):
                del self._writes[key]

    def since(self, number: int, extent: Extent | None) -> list[Value]:
        """Return the values of the writes after call `number` that overlap `extent`, in order."""
        later = itertools.takewhile(lambda write: write[0] > number, reversed(self._writes.values()))
        return [value for _, value, written in reversed(list(later)) if overlap(extent, written)]


_FEW = 64  # writes that are looked through one by one at each further write


class Retention:
    """Values whose tensors are kept by reference, and copied only when their memory is about to be overwritten.

    Parameters
    ----------
    in_graph
        Whether copies stay in the autograd graph, each then with memory of its own.
    """

    def __init__(self, in_graph: bool = False) -> None:
        self._kept: dict[int, list[Value]] = {}
        self._in_graph = in_graph

    def keep(self, value: Value, tensor: torch.Tensor, key: int) -> None:
        """Keep `tensor` as ``value.tensor``, with the contents that it has now."""
        value.tensor = tensor
        self._kept.setdefault(key, []).append(value)

    keep_made = keep
    """Keep what a call made; may be otherwise than a source is kept."""

    def watch(self, value: Value, tensor: torch.Tensor, written: bool = False) -> None:
        """Be told of a source."""

    def before_write(self, key: int) -> None:
        """Copy what is kept of that memory: one copy, over which the kept tensors stay aliases of each other."""
        values = self._kept.pop(key, None)
        if values is not None:
            for value, copy in zip(values, copies_of(values, self._in_graph), strict=True):
                value.tensor = copy


def copies_of(values: list[Value], in_graph: bool = False) -> list[torch.Tensor]:
    """Return copies of the kept tensors; those over the same memory are again aliases of each other."""
    storages: dict[int, torch.UntypedStorage] = {}
    with torch.set_grad_enabled(in_graph):
        return [_copy(value, storages, in_graph) for value in values]


def _copy(value: Value, storages: dict[int, torch.UntypedStorage], in_graph: bool) -> torch.Tensor:
    if value.tensor is None:
        raise ValueError("a value that is not kept cannot be copied")
    if in_graph and value.tensor.grad_fn is not None:
        return value.tensor.clone()
    copy = _over_copied_storage(value.tensor.detach(), storages)
    return copy.requires_grad_() if value.requires_grad and value.tensor.requires_grad else copy


def _over_copied_storage(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    key = storage_key(tensor)
    strided = tensor.layout is torch.strided and not tensor.is_nested
    if (
        not strided
        or type(tensor) not in PLAIN
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.is_quantized
        or not key
    ):
        return tensor.clone()
    if key not in storages:
        storages[key] = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())


def overwrite(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    """Copy `contents` into `tensor` without autograd's notice; not into or from memory that was freed."""
    if storage_key(tensor) < 0 or storage_key(contents) < 0:
        return
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(contents)
