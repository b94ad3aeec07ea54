"""Finds the operation that lets one row of a batch into another.

Three replays show it, whatever the shapes on the way: of the batch, of the batch with other rows after the first, and
of the batch with another first row.  An element that both changes reach depends on two rows; no element of the inputs
does.  Where rows change places instead (a roll, the ranks of a sort), a tensor with the dimension of the batch shows
it: its first row is reached by the change of the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.replays import in_step
from pytest_torchlens.checks.replays import put_inputs
from pytest_torchlens.checks.replays import tensors_of
from pytest_torchlens.checks.results import apart
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.run import needed_values
from pytest_torchlens.replay.run import read_by_python


class RowPlace(NamedTuple):
    """The operation that lets another row in, and how."""

    number: int
    cause: str
    mixes: bool = False
    """Whether an element of its result depends on two rows."""
    is_read: bool = False
    """Whether it leads to no output, but to what Python reads."""


_MIXES = "the first operation with an element that depends on two rows"
_MOVES = "the first operation whose result is not row for row that of its inputs"
_READ = "Python reads what follows from it, which depends on other rows, and decides by that for this row, too"


def row_place(
    subject: Subject, history: ModelHistory, path: str, changes: list[Arguments], size: int
) -> RowPlace | None:
    """Return the operation that lets another row into the output at a path; None if no replay shows it.

    Parameters
    ----------
    subject, history
        The model, and a recorded pass of a batch of `size`.
    path
        The output.
    changes
        The batch with other rows after the first, and with another first row.
    """
    recording = history.recording
    rows = _Rows(recording, size)
    leading, behind, read = ancestors(recording, path), _read_by_python(recording), None
    for number, outputs in _played(subject, recording, changes, rows):
        reached = [_reached(*values) for values in outputs]
        if number in leading and any(map(_is_mixed, reached)):
            origin = rows.origin(number)
            return RowPlace(origin, _MIXES if origin == number else _MOVES, mixes=origin == number)
        if number in behind and read is None and any(map(_is_of_a_row, reached)):
            read = number
        rows.note(number, reached)
    moved = rows.moved(value for at, one in recording.outputs if at == path for value in needed_values(one))
    if moved is not None:
        return RowPlace(moved, _MOVES)
    return None if read is None else RowPlace(read, _READ, is_read=True)


def _played(
    subject: Subject, recording: Recording, changes: list[Arguments], rows: _Rows
) -> Iterator[tuple[int, list[tuple[torch.Tensor, ...]]]]:
    """Yield each call, and each of its outputs as recorded and after each change."""
    with torch.no_grad(), contextlib.ExitStack() as stack:
        players = [stack.enter_context(Player(recording)) for _ in range(1 + len(changes))]
        for player, change in zip(players[1:], changes, strict=True):
            put_inputs(player, recording, tensors_of(change))
        for source in recording.sources:
            rows.note_source(source.value, _reached(*(player.at(source.value.slot) for player in players)))
        for number, outputs in in_step(recording, players):
            subject.check_time()
            yield number, list(zip(*outputs, strict=True))


_Reached = tuple[torch.Tensor, ...] | None
"""Which elements each of the changes reaches; None if a shape is another one after them."""


def _reached(plain: torch.Tensor, *changed: torch.Tensor) -> _Reached:
    if any(tensor.shape != plain.shape for tensor in changed):
        return None
    return tuple(apart(plain, tensor) != 0 for tensor in changed)


def _is_mixed(reached: _Reached) -> bool:
    return reached is None or bool(torch.stack(reached).all(0).any())


def _is_of_a_row(reached: _Reached) -> bool:
    """Return whether a single value depends on a row of a batch."""
    return _is_mixed(reached) or any(part.numel() == 1 and bool(part) for part in reached or ())


def _read_by_python(recording: Recording) -> set[int]:
    """Return the numbers of the calls that a value which Python reads depends on."""
    waiting = [value for escape in recording.escapes for value in read_by_python(escape)]
    found: set[int] = set()
    while waiting:
        if (number := waiting.pop().call) >= 0 and number not in found:
            found.add(number)
            reads = (read for _, read in edges_in(recording.calls[number]))
            waiting += [value for read in reads for value in needed_values(read)]
    return found


class _Rows:
    """Where the rows are in the values of a pass: in which dimension, and whether each is at its place."""

    def __init__(self, recording: Recording, size: int) -> None:
        self._calls = recording.calls
        self._size = size
        self._in_place: dict[int, int] = {}
        """The dimension of the rows by id of the value, where each is at its place."""
        self._moved: dict[int, int] = {}
        """The same where rows are at other places."""
        self._split: dict[int, int] = {}
        """The same where a row has something of several."""

    def note_source(self, value: Value, reached: _Reached) -> None:
        """Note where the rows are in a value that no call made."""
        found = [dim for dim in self._dims(reached[0]) if self._are_in_place(reached, dim)] if reached else []
        if found:
            self._in_place[id(value)] = found[0]

    def note(self, number: int, reached: list[_Reached]) -> None:
        """Note where the rows are in the outputs of a call; not where they have another dimension than before."""
        known = {where[id(value)] for value in self._reads(number) for where in self._all if id(value) in where}
        for value, parts in zip(self._calls[number].outputs, reached, strict=False):
            self.note_source(value, parts)
            dim = next((dim for dim in self._dims(parts[0]) if dim in known), None) if parts else None
            if parts and dim is not None and id(value) not in self._in_place and any(part.any() for part in parts):
                others, first = (part.movedim(dim, 0).flatten(1).any(1) for part in parts)
                (self._split if bool((others & first).any()) else self._moved)[id(value)] = dim

    def _dims(self, part: torch.Tensor) -> list[int]:
        """Return the dimensions that may be that of the rows."""
        return [dim for dim in range(part.dim()) if part.size(dim) == self._size]

    def _are_in_place(self, reached: tuple[torch.Tensor, ...], dim: int) -> bool:
        others, first = (part.movedim(dim, 0) for part in reached)
        return bool(others.any() or first.any()) and not bool(others[0].any() or first[1:].any())

    @property
    def _all(self) -> tuple[dict[int, int], ...]:
        return self._in_place, self._moved, self._split

    def _reads(self, number: int) -> list[Value]:
        return [value for _, read in edges_in(self._calls[number]) for value in needed_values(read)]

    def origin(self, number: int) -> int:
        """Return the call that gave a call rows which are not all at their places; the call itself if all are, or none.

        All are moved between a sort and its reverse, for example.
        """
        reads = self._reads(number)
        split = [value for value in reads if id(value) in self._split]
        moved = [value for value in reads if id(value) in self._moved]
        if any(id(value) in self._in_place for value in reads):
            split += moved
        return self._origin_of(split[0]) if split else number

    def _origin_of(self, value: Value) -> int:
        """Return the call from which on the rows are not at their places."""
        while True:
            reads = self._reads(value.call)
            before = [one for one in reads if id(one) in self._moved or id(one) in self._split]
            if not before:
                return value.call
            value = before[0]

    def moved(self, values: Iterable[Value]) -> int | None:
        """Return the call from which on rows are not at their places, on the way to values; None if all are."""
        waiting, entered = list(values), set[int]()
        while waiting:
            value = waiting.pop()
            if id(value) in self._moved or id(value) in self._split:
                return self._origin_of(value)
            if id(value) not in self._in_place and value.call >= 0 and value.call not in entered:
                entered.add(value.call)
                waiting += self._reads(value.call)
        return None
