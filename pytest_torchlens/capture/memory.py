"""Saves tensors by reference, and copies them before a write to their memory.

Also tracks memory that Python arrays share: a write through an array calls no torch function.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture.fingerprint import digest_and_key
from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.storage import is_freed
from pytest_torchlens.capture.storage import reach
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.wrappers import inner_tensors
from pytest_torchlens.capture.wrappers import is_wrapper
from pytest_torchlens.capture.wrappers import map_parts


class Retention:
    """Saves tensors of values by reference, and copies them only when their memory is about to be overwritten.

    Parameters
    ----------
    in_graph
        Whether copies stay in the autograd graph; each then has its own memory.
    """

    def __init__(self, in_graph: bool = False) -> None:
        self._by_memory: dict[int, list[Value]] = {}
        self._in_graph = in_graph

    def keep(self, value: Value, tensor: torch.Tensor, key: int) -> None:
        """Save `tensor` as ``value.tensor``, with its current contents."""
        value.tensor = tensor
        self._by_memory.setdefault(key, []).append(value)

    keep_output = keep
    """Save an output of a call; subclasses override this to save outputs differently from sources."""

    digest_and_key = staticmethod(digest_and_key)
    """Return the fingerprint of an output, ``""`` if it is to have none, and its storage key."""

    def watch(self, value: Value, tensor: torch.Tensor, written: bool = False) -> None:
        """Called for each source; does nothing here."""

    def follow_move(self, old: int, new: int) -> None:
        """Find the saved tensors over memory `old` at `new` from now on."""
        rekey(self._by_memory, old, new)

    def before_write(self, key: int) -> None:
        """Copy the saved tensors over this memory: into one memory, so that they stay aliases of each other."""
        values = self._by_memory.pop(key, None)
        if values is not None:
            for value, copy in zip(values, copies_of(values, self._in_graph), strict=True):
                value.tensor = copy


def copies_of(values: list[Value], in_graph: bool = False) -> list[torch.Tensor]:
    """Return copies of the saved tensors; copies of aliases are aliases of each other."""
    pieces = _pieces(values)
    return [_copy(value, pieces, in_graph) for value in values]


def _copy(value: Value, pieces: dict[int, _CopiedBytes], in_graph: bool) -> torch.Tensor:
    if value.tensor is None:
        raise ValueError("expected a value whose tensor is saved, got one without")
    tensor = value.tensor
    if is_wrapper(tensor):
        return duplicate(tensor)
    # a view of a weight requires gradients in inference mode too, one of a tensor made there does not
    with torch.inference_mode(tensor.is_inference()), torch.set_grad_enabled(in_graph and tensor.grad_fn is not None):
        if torch.is_grad_enabled():
            return tensor.clone()
        copy = pieces[storage_key(tensor)].tensor_over_copy(tensor) if _has_plain_memory(tensor) else tensor.clone()
    return copy.requires_grad_() if value.requires_grad and tensor.requires_grad else copy


def _has_plain_memory(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or type(tensor) not in PLAIN or tensor.is_quantized:
        return False
    return not (tensor.is_conj() or tensor.is_neg()) and tensor.numel() > 0 and storage_key(tensor) != 0


class _CopiedBytes:
    """The bytes of one memory to copy, and their copy."""

    def __init__(self) -> None:
        self._first, self._last, self._whole = sys.maxsize, 0, False
        self._storage: torch.UntypedStorage | None = None

    def include(self, tensor: torch.Tensor, whole: bool) -> None:
        """Include a tensor's bytes, or with `whole` all bytes of the memory."""
        extent = Extent.of(tensor)
        if whole or extent is None:
            self._whole = True
        else:
            self._first = min(self._first, extent.start // _ALIGNMENT * _ALIGNMENT)
            self._last = max(self._last, extent.stop)

    def tensor_over_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the same tensor over the copied memory."""
        first = 0 if self._whole else self._first
        if self._storage is None:
            storage = tensor.untyped_storage()
            self._storage = _copy_of(storage) if self._whole else _part(storage, first, self._last)
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = tensor.storage_offset() - first // tensor.itemsize
        return empty.set_(self._storage, offset, tensor.shape, tensor.stride())


_ALIGNMENT = 64  # bytes: kernels may compute other results on memory with another alignment


def _copy_of(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy of a storage.  While a pass is recorded, its own `copy_` is a write of the model's."""
    copy = torch.UntypedStorage(storage.nbytes(), device=storage.device)  # type: ignore[no-untyped-call]
    torch._C.StorageBase.copy_(copy, storage)  # type: ignore[attr-defined]
    return copy


def _part(storage: torch.UntypedStorage, first: int, last: int) -> torch.UntypedStorage:
    every = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return every[first:last].clone().untyped_storage()


def _pieces(values: list[Value]) -> dict[int, _CopiedBytes]:
    """Return the bytes to copy of each memory: all of a source's, because the replay may read beyond its bounds."""
    pieces: dict[int, _CopiedBytes] = {}
    for value in values:
        tensor = value.tensor
        if tensor is not None and _has_plain_memory(tensor):
            pieces.setdefault(storage_key(tensor), _CopiedBytes()).include(tensor, whole=value.call < 0)
    return pieces


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the same memory without a history; a wrapper's class is not asked."""
    with torch._C.DisableTorchFunction():
        return map_parts(tensor, detached) if is_wrapper(tensor) else tensor.detach()


def duplicate(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached copy, also of a dtype that can only be stored (``int4``, ``float4_e2m1fn_x2``)."""
    if is_wrapper(tensor):
        return map_parts(tensor, duplicate)
    tensor = tensor.detach()
    if is_freed(tensor):  # it has no values; to read them would end the process
        return tensor
    try:
        return tensor.clone()
    except NotImplementedError:
        return tensor.view(torch.uint8).clone().view(tensor.dtype)


def overwrite(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    """Copy `contents` into `tensor` without autograd; do nothing if the memory of either was freed."""
    if storage_key(tensor) < 0 or storage_key(contents) < 0:
        return
    if is_wrapper(tensor):
        for part, part_contents in zip(inner_tensors(tensor), inner_tensors(contents), strict=True):
            overwrite(part, part_contents)
        return
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        try:
            tensor.copy_(contents)
        except NotImplementedError:  # a dtype that can only be stored
            tensor.view(torch.uint8).copy_(contents.view(torch.uint8))
        except RuntimeError:  # several elements share a place in memory
            _scatter(tensor, contents)


def with_layout(contents: torch.Tensor, stride: tuple[int, ...], offset: int = 0) -> torch.Tensor:
    """Return a copy with these strides that begins `offset` bytes after a multiple of 64."""
    start = offset // contents.itemsize
    like = torch.empty(0, dtype=contents.dtype, device="meta").as_strided(contents.shape, stride)
    memory = torch.empty(start + reach(like), dtype=contents.dtype, device=contents.device)
    tensor = memory.as_strided(contents.shape, stride, start)
    overwrite(tensor, contents)
    return tensor


def _scatter(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    """Write each element to its place in memory."""
    count = reach(tensor)
    places = torch.arange(count, device=tensor.device).as_strided(tensor.shape, tensor.stride())
    tensor.as_strided((count,), (1,))[places.flatten()] = contents.flatten()


@dataclasses.dataclass(eq=False)  # tensors do not compare as a whole
class _Exposure:
    """A tensor, its digest, and a weak reference to an array over its memory; None if the array is not NumPy's."""

    tensor: torch.Tensor
    digest: str
    array: weakref.ref[np.ndarray] | None


class Arrays:
    """Tensors with an array over their memory, checked for changes until the array is freed.

    Parameters
    ----------
    changed
        Called with each tensor that was written to.

    Attributes
    ----------
    over
        The watched arrays by memory.
    """

    def __init__(self, changed: Callable[[torch.Tensor], None]) -> None:
        self._on_change = weakref.WeakMethod(changed)
        self.over: dict[int, list[_Exposure]] = {}
        self._dead_arrays: list[weakref.ref[np.ndarray]] = []

    def add(self, tensor: torch.Tensor, key: int, array: object) -> None:
        """Watch an array over a tensor's memory; forever if it is not a NumPy array."""
        # a view of an array keeps the array alive
        ref = weakref.ref(array, self._dead_arrays.append) if isinstance(array, np.ndarray) else None
        self.over.setdefault(key, []).append(_Exposure(tensor, fingerprint(tensor), ref))

    def check(self, key: int) -> None:
        """Report writes to this memory since the last check, and writes through arrays that were freed."""
        if self._dead_arrays:
            self._drop_dead_arrays()
        for exposure in self.over.get(key, ()):
            self._compare(key, exposure)

    def check_all(self) -> None:
        """Report all writes since the last checks."""
        for key, exposures in list(self.over.items()):
            for exposure in exposures:
                self._compare(key, exposure)

    def follow_move(self, old: int, new: int) -> None:
        """Watch the arrays over memory `old` at `new` from now on."""
        rekey(self.over, old, new)

    def refresh(self, key: int) -> None:
        """Accept the current contents of this memory: a recorded call wrote them."""
        for exposure in self.over.get(key, ()):
            exposure.digest = fingerprint(exposure.tensor)

    def _compare(self, key: int, exposure: _Exposure) -> None:
        if storage_key(exposure.tensor) != key:  # it has other memory now: the array shows in it no longer
            return
        now = fingerprint(exposure.tensor)
        if now != exposure.digest and (changed := self._on_change()) is not None:
            exposure.digest = now
            changed(exposure.tensor)

    def _drop_dead_arrays(self) -> None:
        """Check the memory of freed arrays a last time, and stop watching it."""
        dead, self._dead_arrays[:] = list(self._dead_arrays), []
        for key, exposures in list(self.over.items()):
            for exposure in [exposure for exposure in exposures if exposure.array in dead]:
                self._compare(key, exposure)
                exposures.remove(exposure)
            if not exposures:
                del self.over[key]


def rekey(by_memory: dict[int, Any], old: int, new: int) -> None:
    """Move what is stored for memory `old` to memory `new`, which replaces it."""
    if old in by_memory:
        by_memory[new] = by_memory.pop(old)


def is_copy(array: object) -> bool:
    """Return whether an array has its own memory, because it was converted to another type."""
    return isinstance(array, np.ndarray) and array.flags.owndata


def copy_of_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy of an array with the same strides, which a tensor made from it may inherit."""
    if type(array) is not np.ndarray or array.dtype.hasobject:
        return np.ndarray.copy(array, order="K")
    ends = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    first, last = sum(end for end in ends if end < 0), sum(end for end in ends if end > 0)
    memory = np.zeros(last - first + array.itemsize, dtype=np.uint8)  # gaps in it cost no memory
    copied: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, memory, -first, array.strides)
    copied[...] = array
    return copied
