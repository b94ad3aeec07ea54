"""The writes to one memory that still count, and which of them a read of some of its bytes depends on."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import edges_in
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.storage import overlap
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.values import value_of

Write = tuple[int, Value, Extent | None]
"""Number of the call, the value it wrote, and the bytes; None where the bytes are unknown."""


class WriteLog:
    """The writes to one memory that still count: a later write to all the same bytes replaces the earlier one.

    A later write that keeps something of the earlier one has read it, and so depends on it itself.
    """

    __slots__ = ("_index", "_pending_reads", "_somewhere", "_writes", "latest")

    def __init__(self) -> None:
        self._writes: dict[Hashable, Write] = {}
        self._index: _ExtentIndex | None = None
        """Made at the first look-up among many: most memory is written a few times, as by ``relu_``."""
        self._somewhere: list[Write] = []
        self._pending_reads: list[Aliased] = []
        self.latest = -1
        """Number of the last call that wrote."""

    def add(self, number: int, value: Value, extent: Extent | None) -> None:
        """Note that call `number` wrote `value` to these bytes."""
        for read in self._pending_reads:
            _ = read.writes  # look them up before this write is added
        self._pending_reads.clear()
        self.latest = number
        write = number, value, extent
        if extent is None:
            self._somewhere.append(write)
            self._writes[object()] = write
            return
        for former in self._writes_covered_by(extent) if self._writes else ():
            del self._writes[former]
            if self._index is not None:
                self._index.discard(former)
        self._writes[extent] = write
        if self._index is not None:
            self._index.add(extent)

    def _near(self, extent: Extent) -> list[Extent] | None:
        if self._index is None:
            if len(self._writes) <= _FEW:
                return None
            self._index = _ExtentIndex()
            for _, _, former in self._writes.values():
                if former is not None:
                    self._index.add(former)
        return self._index.near(extent, len(self._writes))

    def _writes_covered_by(self, extent: Extent) -> list[Extent]:
        if not extent.dense:
            return [extent] if extent in self._writes else []
        near = self._near(extent)
        formers = (former for _, _, former in self._writes.values() if former is not None) if near is None else near
        return [former for former in formers if extent.covers(former)]

    def read(self, value: Value, since: int, extent: Extent | None) -> Value | Aliased:
        """Return a read of a tensor that holds `value` since call `since`, with the later writes to these bytes."""
        if next(self._later(since, extent), None) is None:
            return value
        read = Aliased(value, reading=Reading(self, since, extent))
        self._pending_reads.append(read)
        return read

    def read_of_part(
        self, read: Value | Aliased, of_base: Aliased | None, extent: Extent | None
    ) -> tuple[Value | Aliased, Aliased | None]:
        """Return a read of this memory, reduced to `extent`, and the same as a read of the base.

        `of_base` is how a view reads its base, if what was read is a view; the second result is for reads of the part.
        Where writes show in the view and not in the part, the part reads the base and not the view.
        """
        part = self._reduced(read, extent) if type(read) is Aliased else read
        if of_base is None or of_base.reading is None or of_base.reading.log is not self:
            return part, part if type(part) is Aliased else None
        reading = Reading(self, of_base.reading.since, extent)
        of_part = Aliased(value_of(read), reading.writes(), reading, of_base.base)
        return part if set(of_base.writes) <= set(of_part.writes) else of_part, of_part

    def _reduced(self, read: Aliased, extent: Extent | None) -> Value | Aliased:
        reading = read.reading
        if reading is None or reading.log is not self:
            return read
        if self._pending_reads and self._pending_reads[-1] is read:
            self._pending_reads.pop()
        return self.read(read.value, reading.since, extent)

    def since(self, number: int, extent: Extent | None) -> list[Value]:
        """Return the values of the writes after call `number` that overlap `extent`, in order."""
        return [value for _, value, _ in sorted(self._later(number, extent), key=_place_in_time)]

    def _later(self, number: int, extent: Extent | None) -> Iterator[Write]:
        near = None if extent is None else self._near(extent)
        if near is None:
            writes: Iterable[Write] = itertools.takewhile(
                lambda write: write[0] > number, reversed(self._writes.values())
            )
        else:
            writes = itertools.chain(self._somewhere, (self._writes[place] for place in near))
        return (write for write in writes if write[0] > number and overlap(extent, write[2]))


def _place_in_time(write: Write) -> tuple[int, int]:
    return write[0], write[1].position


@dataclass(frozen=True)
class Reading:
    """Which bytes of a memory were read, and the call after which writes to them count."""

    log: WriteLog
    since: int
    extent: Extent | None

    def writes(self) -> tuple[Value, ...]:
        """Return the values of the writes to these bytes."""
        return tuple(self.log.since(self.since, self.extent))


class _ExtentIndex:
    """An index of extents by their position in memory, in cells about as long as the extents.

    Extents of one run are indexed by address.  Extents with gaps, such as the columns of a matrix, are indexed by their
    offset within one step.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int], dict[int, dict[Extent, None]]] = {}

    def add(self, extent: Extent) -> None:
        kind, cell = _cell(extent)
        self._kinds.setdefault(kind, {}).setdefault(cell, {})[extent] = None

    def discard(self, extent: Extent) -> None:
        kind, cell = _cell(extent)
        cells = self._kinds[kind]
        del cells[cell][extent]
        if not cells[cell]:
            del cells[cell]

    def near(self, extent: Extent, at_most: int) -> list[Extent] | None:
        """Return the extents that may overlap this one; None if that means searching more than `at_most` cells."""
        near = [(cells, _cells_near(extent, *kind, cells)) for kind, cells in self._kinds.items() if cells]
        if sum(len(numbers) for _, numbers in near) > at_most + _FEW:
            return None
        return [other for cells, numbers in near for number in numbers for other in cells.get(number, ())]


_FEW = 8  # cells that are always searched, however few writes there are


def _cell(extent: Extent) -> tuple[tuple[int, int], int]:
    """Return the kind (step from run to run, binary logarithm of the cell length) and the number of the cell."""
    run, step = extent.run_and_step
    if run >= step:
        level = (extent.stop - extent.start).bit_length()
        return (0, level), extent.start >> level
    level = run.bit_length()
    return (step, level), extent.start % step >> level


def _cells_near(extent: Extent, step: int, level: int, cells: Collection[int]) -> Collection[int]:
    if not step:
        return range((extent.start >> level) - 1, (extent.stop >> level) + 1)
    run, own = extent.run_and_step
    if own != step:
        return cells
    start, count = extent.start % step, -(-step >> level)
    # the last cell may be shorter, and the first cell follows it
    return {number % count for number in range((start >> level) - 2, (start + run >> level) + 2)}


def overlaps_of(
    written: tuple[torch.Tensor, ...], call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], ...]:
    """Return the slots of a call's arguments for each memory that it overwrites, where there are several."""
    passed = tensors((*args, *kwargs.values())) if kwargs else tensors(args)
    if len(passed) == 1:
        return ()
    with torch._C.DisableTorchFunction():
        keys = set(map(storage_key, written)) - {0}
        if sum([storage_key(tensor) in keys for tensor in passed]) <= 1:
            return ()
        memory = {path: storage_key(tensor) for path, tensor in (*walk(args), *walk(kwargs))}
    by_key: dict[int, dict[int, None]] = {}
    for path, read in edges_in(call):
        if (key := memory.get(path)) in keys:
            by_key.setdefault(key, {})[value_of(read).slot] = None
    return tuple([tuple(slots) for slots in by_key.values() if len(slots) > 1])
