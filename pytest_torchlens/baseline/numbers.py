"""The numbers of every value of a forward pass, from one replay of it."""

from __future__ import annotations

import weakref

import torch

from pytest_torchlens.baseline.sketch import numbers_of
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.storage import storage_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import Node
from pytest_torchlens.replay import Player


class Rerun:
    """Replays a pass and looks at each value when it is made.

    Attributes
    ----------
    peak_bytes
        Most bytes that the values of the pass held at one time, parameters and inputs not counted.
    """

    def __init__(self, history: ModelHistory) -> None:
        self._recording = history.recording
        self._seeded = history.random_seed_used is not None
        self._numbers: dict[int, Numbers] = {}
        self._aliases: dict[int, str] = {}
        self._blank: set[int] = set()
        self._memory = _Memory()
        for source in self._recording.sources:
            if source.kind in ("input", "constant") and source.value.tensor is not None:
                self._numbers[id(source.value)] = numbers_of(source.value.tensor, source.value.fingerprint)
        with Player(self._recording) as player:
            for number, call in enumerate(self._recording.calls):
                self._play(player, number, call)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that values held at one time."""
        return self._memory.peak

    def numbers_of(self, node: Node) -> Numbers:
        """Return the numbers of a node's value; its digest alone where it was not replayed."""
        return self._numbers.get(id(node.value)) or Numbers(digest=node.value.fingerprint)

    def alias_of(self, node: Node) -> str:
        """Return the argument whose memory a node's value shares; ``""`` where it has its own."""
        return self._aliases.get(id(node.value), "") if node.call is not None else ""

    def _play(self, player: Player, number: int, call: Call) -> None:
        reads = [(path, value_of(read)) for path, read in reversed([*edges_in(call)])]
        places = {storage_key(player.at(value.slot)): (path, value) for path, value in reads}
        returned, outputs = player.play(number, call, player.arguments(call))
        for value, output in zip(call.outputs, outputs, strict=True):
            alias, base = places.get(storage_key(output) or -1, ("", None))
            self._aliases[id(value)] = alias
            is_view = base is not None and value.slot not in call.writes
            if number in self._recording.uninitialised or (is_view and id(base) in self._blank):
                self._blank.add(id(value))
            self._numbers[id(value)] = self._look(call, value, None if is_view else output)
        self._memory.add(outputs)
        player.store(number, call, returned)

    def _look(self, call: Call, value: Value, output: torch.Tensor | None) -> Numbers:
        """Return the numbers of a value; the digest alone of a view, nothing of memory that nobody wrote to yet."""
        if id(value) in self._blank:
            return Numbers()
        if output is None:
            return Numbers(digest=value.fingerprint)
        unstable = fingerprint(output) != value.fingerprint or (call.random is not None and not self._seeded)
        return numbers_of(output, value.fingerprint, unstable=unstable)


class _Memory:
    """Counts the bytes under tensors for as long as they live."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.peak = 0

    def add(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._storages = {key: entry for key, entry in self._storages.items() if entry[0]() is not None}
        for tensor in tensors:
            if (storage := storage_of(tensor)) is not None:
                self._storages[storage_key(tensor)] = weakref.ref(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._storages.values()))
