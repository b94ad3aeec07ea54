"""What was written where in one memory, and which of it shows in a later read."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.storage import overlap
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Value

Write = tuple[int, Value, Extent | None]
"""Number of the call, what it wrote, and where; None where it cannot be told."""


class WriteLog:
    """The writes to one memory that still show: a later one to all of the same bytes takes the place of the earlier.

    What the later one took from the earlier one it has read, and depends on by itself.
    """

    def __init__(self) -> None:
        self._writes: dict[Hashable, Write] = {}
        self._places = _Places()
        self._somewhere: list[Write] = []
        self._unasked: list[Aliased] = []
        self.latest = -1
        """Number of the last call that wrote."""

    def add(self, number: int, value: Value, extent: Extent | None) -> None:
        """Note that call `number` wrote `value` there."""
        for read in self._unasked:
            _ = read.writes  # as they are now
        self._unasked.clear()
        self.latest = number
        write = number, value, extent
        if extent is None:
            self._somewhere.append(write)
            self._writes[object()] = write
            return
        for former in self._covered(extent):
            del self._writes[former]
            self._places.discard(former)
        self._writes[extent] = write
        self._places.add(extent)

    def _covered(self, extent: Extent) -> list[Extent]:
        if not extent.dense:
            return [extent] if extent in self._writes else []
        near = self._places.near(extent, len(self._writes))
        formers = (former for _, _, former in self._writes.values() if former is not None) if near is None else near
        return [former for former in formers if extent.covers(former)]

    def read(self, value: Value, since: int, extent: Extent | None) -> Value | Aliased:
        """Return what is read of a tensor that holds `value` since call `since`: with the writes after, if any show."""
        if next(self._later(since, extent), None) is None:
            return value
        read = Aliased(value, reading=Reading(self, since, extent))
        self._unasked.append(read)
        return read

    def narrowed(self, read: Aliased, extent: Extent | None) -> Value | Aliased:
        """Return a read of this memory as one of `extent` alone."""
        reading = read.reading
        if reading is None or reading.log is not self:
            return read
        if self._unasked and self._unasked[-1] is read:
            self._unasked.pop()
        return self.read(read.value, reading.since, extent)

    def since(self, number: int, extent: Extent | None) -> list[Value]:
        """Return the values of the writes after call `number` that overlap `extent`, in order."""
        return [value for _, value, _ in sorted(self._later(number, extent), key=_place_in_time)]

    def _later(self, number: int, extent: Extent | None) -> Iterator[Write]:
        near = None if extent is None else self._places.near(extent, len(self._writes))
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
    """Which bytes of a memory were read, and after which call writes to them count."""

    log: WriteLog
    since: int
    extent: Extent | None

    def writes(self) -> tuple[Value, ...]:
        """Return the values of the writes that show in it."""
        return tuple(self.log.since(self.since, self.extent))


class _Places:
    """Extents, found by the bytes that they are near to, in cells about as long as they are.

    Those of one run lie in cells by their address, those with gaps, such as the columns of a matrix, by where in the
    gaps of the others they are.
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
        """Return the extents that may overlap one; None if more than `at_most` cells are to be looked into."""
        looked = [(cells, _cells_near(extent, *kind, cells)) for kind, cells in self._kinds.items() if cells]
        if sum(len(numbers) for _, numbers in looked) > at_most + _FEW:
            return None
        return [found for cells, numbers in looked for number in numbers for found in cells.get(number, ())]


_FEW = 8  # cells that are looked into however few writes there are


def _cell(extent: Extent) -> tuple[tuple[int, int], int]:
    """Return the step from run to run, the power of two that cells are long, and the number of the cell."""
    run, step = extent.teeth
    if run >= step:
        level = (extent.stop - extent.start).bit_length()
        return (0, level), extent.start >> level
    level = run.bit_length()
    return (step, level), extent.start % step >> level


def _cells_near(extent: Extent, step: int, level: int, cells: Collection[int]) -> Collection[int]:
    if not step:
        return range((extent.start >> level) - 1, (extent.stop >> level) + 1)
    run, own = extent.teeth
    if own != step:
        return cells
    start, count = extent.start % step, -(-step >> level)
    # the last cell may be shorter, and the first comes after it
    return {number % count for number in range((start >> level) - 2, (start + run >> level) + 2)}
