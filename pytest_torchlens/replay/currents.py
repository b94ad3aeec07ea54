"""Which value each slot holds during a replay, told from the replayed tensors: what recorded edges must say."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.tensor_table import WriteLog


class Currents:
    """Follows values and writes from call to call."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._held = {source.value.slot: (source.value, source.since) for source in sources}
        self._writes: dict[int, WriteLog] = {}

    def agrees(self, read: Value | Aliased, tensor: torch.Tensor) -> bool:
        """Return whether a recorded read of `tensor` names the value that it holds and the writes that reached it."""
        value, writes = (read.value, read.writes) if isinstance(read, Aliased) else (read, ())
        held, since = self._held[value.slot]
        return held is value and set(map(id, writes)) == set(map(id, self._later_writes(tensor, since)))

    def unrecorded_writers(self, read: Value | Aliased, tensor: torch.Tensor) -> list[int]:
        """Return the numbers of the calls that overwrote what `tensor` held and that a recorded read does not name."""
        value, writes = (read.value, read.writes) if isinstance(read, Aliased) else (read, ())
        held, since = self._held[value.slot]
        named = {id(value), *map(id, writes)}
        overwritten = [held] if held is not value and held.slot == value.slot else []
        later = [*overwritten, *self._later_writes(tensor, since)]
        return [write.call for write in later if id(write) not in named]

    def shows_in(self, base: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return which of the two a call read that may have given a view of `base`: of a view, what is in that."""
        return output if self._writes and storage_key(output) == storage_key(base) else base

    def was_written(self, tensor: torch.Tensor) -> bool:
        """Return whether a call is recorded that overwrote a tensor's memory."""
        return storage_key(tensor) in self._writes

    def _later_writes(self, tensor: torch.Tensor, since: int) -> list[Value]:
        log = self._writes.get(storage_key(tensor)) if self._writes else None
        return [] if log is None or log.latest <= since else log.since(since, Extent.of(tensor))

    def note(self, number: int, call: Call, written: dict[int, torch.Tensor]) -> None:
        """Note what call `number` gave and the tensors, by slot, that it overwrote."""
        for value in call.outputs:
            self._held[value.slot] = (value, number)
        by_slot = {value.slot: value for value in call.outputs}
        for slot, tensor in written.items():
            value = by_slot.get(slot, call.outputs[0])
            self._writes.setdefault(storage_key(tensor), WriteLog()).add(number, value, Extent.of(tensor))
