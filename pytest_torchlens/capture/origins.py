"""Tensors that turned up in a recording, were not there before the pass, and were made by no recorded call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from collections.abc import Iterator

import torch

from pytest_torchlens.capture.constants import is_foreign
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import Source

Tensor = torch.Tensor


class TensorsBefore:
    """The tensors of this process at one moment, and the memory that they stand for."""

    def __init__(self) -> None:
        alive = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
        self._alive = {id(tensor): weakref.ref(tensor) for tensor in alive}
        self._memory = {key: weakref.ref(tensor) for tensor, key in _memory_of(alive) if key}

    def strangers(self, sources: Iterable[Source]) -> list[Source]:
        """Return the constants among `sources` that did not exist then, and were made out of sight."""
        constants = (source for source in sources if source.kind == "constant" and (source.hidden or not source.maker))
        return [source for source in constants if not self._had(source.live)]

    def _had(self, tensor: Tensor) -> bool:
        for former in (self._alive.get(id(tensor)), self._memory.get(storage_key(tensor))):
            if former is not None and former() is not None:  # else id or memory may have been used again
                return True
        return is_foreign(tensor)


def _memory_of(tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, int]]:
    """Yield each plain tensor with its memory, and with that of its gradient, which Python may not have seen yet."""
    for tensor in tensors:
        if type(tensor) in (Tensor, torch.nn.Parameter):
            yield tensor, storage_key(tensor)
            if (gradient := gradient_of(tensor)) is not None:
                yield tensor, storage_key(gradient)


def gradient_of(tensor: Tensor) -> Tensor | None:
    """Return the gradient of a leaf; None of any other."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:  # a view that autograd forbids to look at, somewhere in this process
        return None
