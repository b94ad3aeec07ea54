"""Measures the memory of tensors while each call runs: as it was, and as if each were freed after its last use."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.storage import storage_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.calls import replay_for


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operations return, from then until they are freed.

    Attributes
    ----------
    peak
        Maximum number of bytes alive at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._bytes = 0
        self._alive: set[int] = set()
        self._recording: Recording | None = None
        self._at_call: Counter[int] = Counter()

    def follow(self, recording: Recording) -> None:
        """From now on, store the bytes alive at each call of a recording in progress."""
        self._recording = recording

    def curve(self) -> tuple[int, ...]:
        """Return the maximum number of bytes alive while each call of the recording ran."""
        numbers = range(len(self._recording.calls)) if self._recording is not None else ()
        # a call that dispatched no operation made no tensor: the bytes are those before it
        return tuple(
            itertools.accumulate(numbers, lambda before, number: self._at_call.get(number, before), initial=0)
        )[1:]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        before = {storage_key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and storage_key(leaf) not in before:
                self._add(leaf)
        self.peak = max(self.peak, self._bytes)
        if self._recording is not None:
            number = len(self._recording.calls)
            self._at_call[number] = max(self._at_call[number], self._bytes)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage, key = storage_of(tensor), storage_key(tensor)
        if storage is not None and key not in self._alive:
            self._alive.add(key)
            self._bytes += storage.nbytes()
            weakref.finalize(storage, self._free, key, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._bytes -= size


def measured_peak(run: Callable[[], object], device: torch.device) -> tuple[int, str]:
    """Return the peak of a plain pass in bytes, less the bytes before it, and how it was measured."""
    if device.type != "cuda":
        with LiveStorages() as live:
            run()
        return (
            live.peak,
            "storages alive in a plain pass, each from when a dispatched operation gave it until it was freed",
        )
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before, "the CUDA allocator's peak over a plain pass"


# -- by the record alone -----------------------------------------------------------------------------------------


def needed_and_moved(recording: Recording) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return for each call the bytes that it or a later call uses, and the bytes that it read and wrote.

    Raises
    ------
    NotReplayableError
        If a call cannot be run again.
    """
    counts = ByteCounts(recording)
    replay_for(counts, recording)
    return counts.needed_and_moved


class ByteCounts:
    """Listens to a replay, and counts the bytes that each call moves, and those that it or a later call uses.

    The storages are those that the pass made; each is alive until the last use of its last tensor.
    """

    def __init__(self, recording: Recording) -> None:
        self._before = {storage_key(source.live) for source in recording.sources}
        self._last_use = _last_uses(recording)
        self._storage_in: dict[int, tuple[int, int]] = {}
        self._users: Counter[int] = Counter()
        self._bytes = 0
        self._needed: list[int] = []
        self._moved: list[int] = []
        self._arguments: list[torch.Tensor] = []

    @property
    def needed_and_moved(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What `needed_and_moved` returns, of the calls so far."""
        return tuple(self._needed), tuple(self._moved)

    def before(self, player: Player, call: Call) -> None:
        """Look at the arguments of a call that is about to run."""
        self._arguments = [player.at(value_of(read).slot) for _, read in edges_in(call)]

    def after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        """Count the storages of a call that has run, and what it moved."""
        arguments, self._arguments = self._arguments, []
        self._moved.append(_bytes_moved(call, arguments, outputs))
        keys = set(map(storage_key, arguments))
        for value, tensor in zip(call.outputs, outputs, strict=True) if call.returned else ():
            key = storage_key(tensor)
            if key not in keys or self._users[key]:  # otherwise it is an input, or the replay's copy of one
                self._enter(value.slot, tensor)
        self._needed.append(self._bytes)
        for slot in self._last_use.get(number, ()):
            self._leave(slot)

    def _enter(self, slot: int, tensor: torch.Tensor) -> None:
        self._leave(slot)
        storage, key = storage_of(tensor), storage_key(tensor)
        if storage is not None and key not in self._before:
            self._storage_in[slot] = key, storage.nbytes()
            self._bytes += 0 if self._users[key] else storage.nbytes()
            self._users[key] += 1

    def _leave(self, slot: int) -> None:
        key, size = self._storage_in.pop(slot, (0, 0))
        if size:
            self._users[key] -= 1
            self._bytes -= 0 if self._users[key] else size


def _last_uses(recording: Recording) -> dict[int, list[int]]:
    """Return for each call the slots that no later call uses, except for the model's outputs."""
    last = {}
    for number, call in enumerate(recording.calls):
        for value in (*(value_of(read) for _, read in edges_in(call)), *call.outputs):
            last[value.slot] = number
    for _, output in recording.outputs:
        last.pop(value_of(output).slot, None)
    slots_by_call: dict[int, list[int]] = {}
    for slot, number in last.items():
        slots_by_call.setdefault(number, []).append(slot)
    return slots_by_call


def _bytes_moved(call: Call, arguments: list[torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> int:
    """Return the bytes of a call's arguments and results; a view moves none."""
    read = {_extent(tensor): _size(tensor) for tensor in arguments}
    written = {_extent(tensor): _size(tensor) for tensor in outputs}
    storages = set(map(storage_key, arguments))
    is_view = not call.writes and all(storage_key(tensor) in storages for tensor in outputs)
    return 0 if is_view else sum(read.values()) + sum(written.values())


def _extent(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return (id(tensor),)
    return storage_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()


def _size(tensor: torch.Tensor) -> int:
    storage = storage_of(tensor)
    size = tensor.numel() * tensor.element_size()
    return size if storage is None else min(size, storage.nbytes())
