"""Which dispatcher operation made the memory of a tensor, as long as that lives."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_torchlens.capture.leaves import tensors

_FROM_PYTHON = "aten::lift_fresh"  # hands on what a constructor made of numbers
_FEW = 1000


class Makers:
    """The operations that made memory during a pass."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[StorageWeakRef, str, bool]] = {}
        self._next_look = _FEW

    def note(self, name: str, inside: bool, given: Any, result: Any) -> None:
        """Note an operation's new memory, and whether it ran inside a recorded call."""
        old = set() if name == _FROM_PYTHON else {storage._cdata for storage in _storages(given)}
        for storage in _storages(result):
            entry = self._made.get(storage._cdata)
            if storage._cdata not in old and (entry is None or _is_gone(entry)):
                self._made[storage._cdata] = StorageWeakRef(storage), name, inside  # type: ignore[no-untyped-call]
        if len(self._made) > self._next_look:
            self._made = {key: entry for key, entry in self._made.items() if not _is_gone(entry)}
            self._next_look = 2 * len(self._made) + _FEW

    def of(self, tensor: torch.Tensor) -> tuple[str, bool]:
        """Return the operation's name, ``""`` if none was seen, and whether it ran inside a recorded call."""
        entries = (self._made.get(storage._cdata) for storage in _storages(tensor))
        entry = next((entry for entry in entries if entry is not None and not _is_gone(entry)), None)
        return ("", False) if entry is None else entry[1:]


def _storages(value: Any) -> list[torch.UntypedStorage]:
    found = (tensor for tensor in tensors(value) if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter)
    return [tensor.untyped_storage() for tensor in found if tensor.layout is torch.strided and not tensor.is_nested]


def _is_gone(entry: tuple[StorageWeakRef, str, bool]) -> bool:
    return bool(entry[0].expired())  # type: ignore[no-untyped-call]
