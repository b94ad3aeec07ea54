"""Counts the bytes of all tensors alive at one time, from what the dispatcher returns: the same on any machine."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory that operations return, until it is freed; memory that a kernel uses inside is not counted.

    Parameters
    ----------
    existing
        Tensors that existed before, and are not counted.
    """

    def __init__(self, existing: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in existing}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count its results."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            self._sizes[key] = size
            weakref.finalize(storage, self._free, key)
            self.now += size
            self.peak = max(self.peak, self.now)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def peak_of(run: Callable[[nn.Module, torch.Tensor], object], model: nn.Module, x: torch.Tensor) -> int:
    """Return how many bytes were alive at once, without the model and its input."""
    from pytest_torchlens.validate import unobtrusive

    # a validation hides its own work from modes, and this one is to see it
    seen = mock.patch.object(unobtrusive, "_disable_current_modes", contextlib.nullcontext)
    with seen, LiveStorage([x, *model.parameters(), *model.buffers()]) as counter:
        result = run(model, x)
    del result
    return int(counter.peak)


def largest_operation(model: nn.Module, x: torch.Tensor) -> int:
    """Return the bytes of inputs and outputs of the largest operation."""
    from pytest_torchlens.capture import edges_in
    from pytest_torchlens.capture import record
    from pytest_torchlens.capture.values import value_of

    def size(call: Any) -> int:
        values = {id(value): value.nbytes for value in (*call.outputs, *(value_of(read) for _, read in edges_in(call)))}
        return sum(values.values())

    return max(map(size, record(model, (x,)).calls), default=0)
