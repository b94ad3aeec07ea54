"""Which value each slot holds during a replay, told from the replayed tensors: what recorded edges must say."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.memory import Extent
from pytest_torchlens.capture.memory import WriteLog
from pytest_torchlens.capture.storage import storage_key


class Currents:
    """Follows values and writes from call to call."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._held = {source.value.slot: (source.value, source.since) for source in sources}
        self._writes: dict[int, WriteLog] = {}

    def agrees(self, read: Value | Aliased, tensor: torch.Tensor) -> bool:
        """Return whether a recorded read of `tensor` names the value that it holds and the writes that reached it."""
        value, writes = (read.value, read.writes) if isinstance(read, Aliased) else (read, ())
        held, since = self._held[value.slot]
        return held is value and {id(write) for write in writes} == self._later_writes(tensor, since)

    def _later_writes(self, tensor: torch.Tensor, since: int) -> set[int]:
        log = self._writes.get(storage_key(tensor)) if self._writes else None
        if log is None or log.latest <= since:
            return set()
        return set(map(id, log.since(since, Extent.of(tensor))))

    def note(self, number: int, call: Call, written: dict[int, torch.Tensor]) -> None:
        """Note what call `number` gave and the tensors, by slot, that it overwrote."""
        for value in call.outputs:
            self._held[value.slot] = (value, number)
        by_slot = {value.slot: value for value in call.outputs}
        for slot, tensor in written.items():
            value = by_slot.get(slot, call.outputs[0])
            self._writes.setdefault(storage_key(tensor), WriteLog()).add(number, value, Extent.of(tensor))
