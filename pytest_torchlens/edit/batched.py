"""Runs several edits of one place at once: their tensors are stacked, and `torch.vmap` maps each call over the stack.

A tensor with one dimension more than was recorded is a stack, a row for each edit.  A call that reads none runs as it
was recorded; a call that cannot be mapped runs once for each row.  Rows never meet, whatever the model does with its
batch, and sizes that were recorded as numbers (``view(1, -1)``) stay right, for a call sees a single row.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay import Player
from pytest_torchlens.replay import Subgraph
from pytest_torchlens.replay.player import Arguments
from pytest_torchlens.replay.run import OtherMemoryError
from pytest_torchlens.replay.run import PlayerFor
from pytest_torchlens.replay.run import Run
from pytest_torchlens.replay.swaps import EdgeSwaps
from pytest_torchlens.replay.swaps import Replacement
from pytest_torchlens.replay.swaps import Swaps


def is_stack(tensor: torch.Tensor, value: Value) -> bool:
    """Return whether a tensor has a row for each edit."""
    return tensor.dim() == len(value.shape) + 1


class StackedReplacement(Replacement):
    """Puts a stack in the place of one value: a row for each edit.

    Parameters
    ----------
    value
        The value.
    replacements
        What each edit puts there.
    """

    def __init__(self, value: Value, replacements: list[Replacement]) -> None:
        self._value = value
        self._replacements = replacements
        self.is_function = any(each.is_function for each in replacements)

    def tensor(self, old: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the stack; `old` returns the value itself, or the stack that it is already."""
        if not self.is_function:
            return torch.stack([each.tensor(old) for each in self._replacements])
        former = old()
        rows = former if is_stack(former, self._value) else [former] * len(self._replacements)
        return torch.stack([self._row(each, row) for each, row in zip(self._replacements, rows, strict=True)])

    def _row(self, replacement: Replacement, former: torch.Tensor) -> torch.Tensor:
        return replacement.tensor(lambda: former)


def stacked(swaps: list[Swaps], values: Mapping[int, Value]) -> Swaps:
    """Return the swaps of several edits, which all change the same values, as one."""
    return {key: StackedReplacement(values[key], [each[key] for each in swaps]) for key in swaps[0]}


class ActivationStore:
    """Activations of the recorded pass that all runs of a sweep share.

    Computed ones stay; of those read from disk the oldest make room.  Those in memory anyway cost nothing.

    Parameters
    ----------
    limit
        How many bytes the computed ones and those read from disk may take together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[int, torch.Tensor | None] = {}
        self._read: dict[int, torch.Tensor] = {}
        self._computed = 0

    @property
    def room(self) -> int:
        """How many bytes further computed values may take."""
        return self._limit - self._computed

    @property
    def nbytes(self) -> int:
        """Bytes of what is computed or read from disk."""
        return self._computed + sum(tensor.nbytes for tensor in self._read.values())

    def add(self, computed: Mapping[int, torch.Tensor]) -> None:
        """Add values that were computed, by the id of the value."""
        self._kept.update(computed)
        self._computed += sum(tensor.nbytes for tensor in computed.values())

    def get(self, value: Value, load: Callable[[Value], torch.Tensor | None]) -> torch.Tensor | None:
        """Return the activation of a value; `load` returns the saved one, if there is one."""
        key = id(value)
        if key in self._kept:
            return self._kept[key]
        if key not in self._read:
            tensor = load(value)
            if tensor is None or tensor is value.tensor:
                self._kept[key] = tensor
                return tensor
            self._make_room(tensor.nbytes)
            if self.nbytes + tensor.nbytes > self._limit:
                return tensor
            self._read[key] = tensor
        return self._read[key]

    def _make_room(self, nbytes: int) -> None:
        while self._read and self.nbytes + nbytes > self._limit:
            del self._read[next(iter(self._read))]


class SweepRun(Run):
    """A run that takes values from a store that all runs of a sweep share."""

    def __init__(self, store: ActivationStore, subgraph: Subgraph, *args: Any, **options: Any) -> None:
        self._store = store
        super().__init__(subgraph, *args, **options)

    @property
    def decides(self) -> bool:
        """Whether Python may have read what the edits change, or a size that depends on it."""
        return bool(self._decisions or self._affected_sizes())

    @property
    def nbytes(self) -> int:
        """Bytes of all values that the edits change."""
        calls = self._recording.calls
        return sum(value.nbytes for number in self._descendants for value in calls[number].outputs)

    @property
    def frontier(self) -> list[Value]:
        """The values of operations that it reads and no edit changes."""
        calls = sorted(self.numbers & self._descendants)
        read = [value for number in calls for value in self._subgraph.values_read_by(number)]
        edited = [value for value in read if id(value) in self._swaps and not self._is_replaced(value)]
        plain = [value for value in read if id(value) not in self._affected]
        return [value for value in (*edited, *plain) if value.call >= 0]

    def saved(self, value: Value) -> torch.Tensor | None:
        """Return the activation of the recorded pass, if it is known."""
        return self._saved(value)

    def _saved(self, value: Value) -> torch.Tensor | None:
        return self._store.get(value, super()._saved)


class NotStackableError(RuntimeError):
    """A call overwrites memory that cannot become a stack."""


class StackedPlayer(Player):
    """Replays calls on stacks.

    Parameters
    ----------
    recording, numbers
        As of `Player`.
    shared
        Slots of tensors in memory that several share.
    """

    def __init__(self, recording: Recording, numbers: set[int], shared: set[int]) -> None:
        super().__init__(recording, numbers)
        self._shared = shared

    def arguments(self, call: Call, swap: Callable[[Value], torch.Tensor] | None = None) -> Arguments:
        """Return a call's arguments; what it overwrites is a stack if one of them is."""
        arguments = super().arguments(call, swap)
        if not call.writes:
            return arguments
        stacks = _stacks(call, arguments)
        plain = {
            value.slot for _, read in edges_in(call) if not is_stack(self.at((value := value_of(read)).slot), value)
        }
        if not stacks or not plain.intersection(call.writes):
            return arguments
        if plain & self._shared:
            raise NotStackableError(f"{call.info.name} overwrites a part of memory that others share")
        for slot in plain.intersection(call.writes):
            tensor = self.at(slot)
            self.replace(slot, tensor.expand(len(stacks[0]), *tensor.shape).clone())
        return super().arguments(call, swap)

    def result(self, call: Call, arguments: Arguments) -> Any:
        """Return the tensors that the function returns, as stacks if an argument is one."""
        stacks = _stacks(call, arguments)
        if not stacks:
            return super().result(call, arguments)
        row = _of_row(call, arguments, stacks)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a function is mapped row by row
                found = torch.vmap(row, randomness="same")(*stacks)
        except Exception:
            if call.writes:
                raise
            found = _one_by_one(call, row, stacks)
        return tuple([_as_argument(tensor, stacks) for tensor in found[1:]])


def _stacks(call: Call, arguments: Arguments) -> list[torch.Tensor]:
    """Return the stacks among the arguments of a call, each once."""
    by_path = dict([*walk(arguments[0]), *walk(arguments[1])])
    found = [(by_path[path], value_of(read)) for path, read in edges_in(call)]
    return list({id(tensor): tensor for tensor, value in found if is_stack(tensor, value)}.values())


def _of_row(call: Call, arguments: Arguments, stacks: list[torch.Tensor]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function that makes a call for one row of the stacks; its first result only tells that of others."""

    def row(*rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        by_id = {id(stack): each for stack, each in zip(stacks, rows, strict=True)}
        reached: set[int] = set()

        def swap(leaf: Any) -> Any:
            if not is_a(leaf, torch.Tensor) or id(leaf) not in by_id:
                return leaf
            reached.add(id(leaf))
            return by_id[id(leaf)]

        args, kwargs = substitute(arguments, swap)
        if len(reached) < len(stacks):
            raise NotStackableError(f"{call.info.name} reads a stack inside an object")
        return (rows[0], *tensors(call.info.func(*args, **kwargs)))

    return row


def _one_by_one(
    call: Call, row: Callable[..., tuple[torch.Tensor, ...]], stacks: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Make a call once for each row, with the same random numbers."""
    found = []
    for rows in zip(*stacks, strict=True):
        if call.random is not None:
            call.random.generator.set_state(call.random.state)
        found.append(row(*rows))
    return tuple([torch.stack(results) for results in zip(*found, strict=True)])


def _as_argument(tensor: torch.Tensor, stacks: list[torch.Tensor]) -> torch.Tensor:
    """Return the argument that a result is, and of a result that is the same for each row this one row."""
    if tensor.layout is not torch.strided:
        return tensor
    if tensor.stride(0) == 0:
        return tensor[0]
    looks = tensor.data_ptr(), tensor.shape, tensor.stride()
    return next((each for each in stacks if (each.data_ptr(), each.shape, each.stride()) == looks), tensor)


class Runner:
    """Runs edits of one pass for its outputs alone, one edit or several at once.

    Parameters
    ----------
    whole
        The whole graph.
    check_decisions
        Whether an edit that changes what Python read raises.
    memory
        How many bytes of activations may be kept for all edits.
    keep_graph
        Whether the outputs keep their graph, for a backward pass.
    """

    def __init__(self, whole: Subgraph, check_decisions: bool, memory: int, keep_graph: bool) -> None:
        self._whole = whole
        self._checks = check_decisions
        self._keep_graph = keep_graph
        self._store = ActivationStore(memory)

    def probe(self, swaps: Swaps, edges: EdgeSwaps) -> SweepRun:
        """Return a run of some edits, to be looked at."""
        return self._run(swaps, edges, self._checks, Player, feeds=True)

    def prepare(self, runs: list[SweepRun]) -> None:
        """Compute what the runs read and the history did not save, each value once, as far as there is memory."""
        read = {id(value): value for run in runs for value in run.frontier if value.slot not in self._whole.shared}
        missing = {str(key): value for key, value in read.items() if runs[0].saved(value) is None}
        sizes = itertools.accumulate(value.nbytes for value in missing.values())
        missing = {
            key: value for (key, value), size in zip(missing.items(), sizes, strict=True) if size <= self._store.room
        }
        if missing:
            found = Subgraph(self._whole.history, end=missing).run_with({}, self._checks)
            self._store.add({int(key): tensor.detach() for key, tensor in found.items()})

    def alone(self, swaps: Swaps, edges: EdgeSwaps) -> dict[str, torch.Tensor]:
        """Return the outputs under one edit, by label."""
        return self._outputs(swaps, edges, self._checks, Player)

    def at_once(self, swaps: list[Swaps], edges: list[EdgeSwaps]) -> list[dict[str, torch.Tensor]]:
        """Return the outputs under several edits that change the same values.

        Raises
        ------
        NotReplayableError
            If they cannot run at once.
        """
        values = self._values()
        merged = {number: stacked([each[number] for each in edges], values) for number in edges[0]}
        try:
            found = self._outputs(stacked(swaps, values), merged, False, self._stacked_player)
        except NotReplayableError:
            raise
        except Exception as error:  # of a function of the user, or of an operation that cannot write into a stack
            raise NotReplayableError(str(error)) from error
        reads = self._whole.model_outputs
        rows = range(len(swaps))
        return [
            {label: each[row] if is_stack(each, value_of(reads[label])) else each for label, each in found.items()}
            for row in rows
        ]

    def _values(self) -> dict[int, Value]:
        recording = self._whole.recording
        made = [value for call in recording.calls for value in call.outputs]
        return {id(value): value for value in (*[source.value for source in recording.sources], *made)}

    def _stacked_player(self, recording: Recording, numbers: set[int]) -> Player:
        return StackedPlayer(recording, numbers, self._whole.shared)

    def _outputs(self, swaps: Swaps, edges: EdgeSwaps, checks: bool, player_for: PlayerFor) -> dict[str, torch.Tensor]:
        try:
            found = self._run(swaps, edges, checks, player_for, feeds=True).outputs()
        except OtherMemoryError:
            found = self._run(swaps, edges, checks, player_for, feeds=False).outputs()
        return found if self._keep_graph else {label: tensor.detach() for label, tensor in found.items()}

    def _run(self, swaps: Swaps, edges: EdgeSwaps, checks: bool, player_for: PlayerFor, *, feeds: bool) -> SweepRun:
        return SweepRun(self._store, self._whole, swaps, checks, feeds=feeds, player_for=player_for, edges=edges)
