"""Runs a part of a recorded graph again, with other values in the place of recorded ones.

`Subgraph` finds the calls between some values and others.  A run takes what it reads from outside from the saved
activations, and computes it from the sources where they are not saved.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.fingerprint import holds
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.memory import detached
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import with_layout
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import shape_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.capture.values import version_of
from pytest_torchlens.capture.wrappers import is_wrapper
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import Node
from pytest_torchlens.replay.calls import NotReplayableError
from pytest_torchlens.replay.player import Player
from pytest_torchlens.replay.swaps import Replacement
from pytest_torchlens.replay.swaps import Swap
from pytest_torchlens.replay.swaps import Swaps

if TYPE_CHECKING:
    from torch.fx import GraphModule

Key = str | int
Keys = Key | Iterable[Key]
Read = Value | Aliased


class NotExportableError(RuntimeError):
    """An operation cannot be exported; the message names it and the reason."""


class DecisionChangedError(RuntimeError):
    """A swap changes a value that Python read, so the model might have run other operations after it."""


class Subgraph:
    """The operations of a forward pass between some of its values and others; `ModelHistory.subgraph` makes one.

    Attributes
    ----------
    inputs
        Labels of the values that its operations read from outside, without parameters and buffers.
    operations
        Labels of its operations, in execution order.
    outputs
        Labels of the values that `run` returns.
    """

    def __init__(
        self, history: ModelHistory, start: Keys | None, end: Keys | None, operations: Iterable[Key] | None
    ) -> None:
        self.history = history
        self.recording = history.recording
        self._nodes = {node.label: node for node in history.nodes}
        self.model_outputs = self._reads_of_outputs()
        """What is read for each output of the model, by label."""
        self.calls: list[int] = []
        """Numbers of the calls of its operations, in order."""
        self.ends: dict[str, Read] = {}
        """What is read for each of its outputs, by label."""
        if operations is None:
            self._find_between(start, end)
        elif start is not None:
            raise TypeError("subgraph: operations name all that runs; give start and end, or operations and end")
        else:
            self._find_among(_listed(operations), end)
        self.shared = _slots_in_shared_memory(self.recording)
        members = set(self.calls)
        reads = [read for number in self.calls for _, read in edges_in(self.recording.calls[number])]
        reads += self.ends.values()
        self.outside = {id(value): value for read in reads for value in values_in(read) if value.call not in members}
        """The values that it reads from outside, sources included, by id."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Labels of the values that its operations read from outside, without parameters and buffers."""
        nodes = (node for node in self._nodes.values() if node.kind not in ("output", "buffer"))
        return tuple(node.label for node in nodes if id(node.value) in self.outside)

    @property
    def operations(self) -> tuple[str, ...]:
        """Labels of its operations, in execution order."""
        members = set(self.calls)
        return tuple(node.label for node in self._nodes.values() if node.number in members)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Labels of the values that `run` returns."""
        return tuple(self.ends)

    @property
    def last_decision(self) -> int:
        """Number of the last call before which Python may decide what its outputs are; for the model's, after all."""
        if self.model_outputs.keys() & self.ends.keys():
            return len(self.recording.calls)
        return max(self.calls, default=-1)

    def __repr__(self) -> str:
        """Return one line."""
        inputs, outputs = ", ".join(self.inputs), ", ".join(self.outputs)
        name = self.history.model_name
        return f"<Subgraph of {name}: {len(self.calls)} operations from {inputs} to {outputs}>"

    # -- what belongs to it --------------------------------------------------------------------------------------

    def _reads_of_outputs(self) -> dict[str, Read]:
        """Return what is read for each output of the model, by label."""
        labels = [node.label for node in self.history.nodes if node.kind == "output"]
        return {label: read for label, (_, read) in zip(labels, self.recording.outputs, strict=True)}

    def _find_between(self, start: Keys | None, end: Keys | None) -> None:
        self.ends = self._ends(end)
        starts = {} if start is None else {id(node.value): node for node in self._made(start)}
        calls, read = self._ancestors(self.ends.values(), starts)
        if unread := [node.label for key, node in starts.items() if key not in read]:
            raise ValueError(f"subgraph: {', '.join(self.ends)} does not depend on {unread[0]!r}")
        self.calls = sorted(calls if start is None else calls & self.descendants(starts)[0])

    def _find_among(self, operations: list[Key], end: Keys | None) -> None:
        nodes = [node for key in operations for node in self._nodes_of(key)]
        if others := [node.label for node in nodes if node.call is None]:
            raise ValueError(f"subgraph: expected operations, got {others[0]!r}, which no call made")
        members = {node.number for node in nodes}
        self.calls = sorted(members)
        made = [node for node in self.history.nodes if node.number in members]
        used = [node for node in made if not node.children or any(kid.number not in members for kid in node.children)]
        self.ends = self._ends(end) if end is not None else {node.label: node.value for node in used}

    def _ends(self, keys: Keys | None) -> dict[str, Read]:
        if keys is None:
            return dict(self.model_outputs)
        nodes = [node for key in _listed(keys) for node in self._nodes_of(key)]
        return {node.label: self.model_outputs.get(node.label, node.value) for node in nodes}

    def _made(self, keys: Keys) -> list[Node]:
        nodes = [node for key in _listed(keys) for node in self._nodes_of(key)]
        if outputs := [node.label for node in nodes if node.kind == "output"]:
            raise ValueError(f"subgraph: {outputs[0]!r} is an output of the model, where nothing can start")
        return nodes

    def _nodes_of(self, key: Key) -> list[Node]:
        """Return the nodes that a key of the history names; raises `LookupKeyError` with the nearest key."""
        found: Any = self.history[key]
        return [self._nodes[operation.label] for operation in getattr(found, "passes", (found,))]

    def _ancestors(self, reads: Iterable[Read], given: Collection[int]) -> tuple[set[int], set[int]]:
        """Return the calls that make some values, as far as those that are given, and the ids of what they read."""
        calls: set[int] = set()
        seen: set[int] = set()
        waiting = [value for read in reads for value in values_in(read)]
        while waiting:
            value = waiting.pop()
            seen.add(id(value))
            if value.call not in calls and value.call >= 0 and id(value) not in given:
                calls.add(value.call)
                waiting += self._values_read_by(value.call)
        return calls, seen

    def _values_read_by(self, number: int) -> list[Value]:
        return [value for _, read in edges_in(self.recording.calls[number]) for value in values_in(read)]

    def descendants(self, values: Collection[int], barred: Collection[int] = ()) -> tuple[set[int], set[int]]:
        """Return the calls that depend on some values, and the ids of all such values; `barred` ones never depend."""
        calls: set[int] = set()
        affected = set(values)
        for number, call in enumerate(self.recording.calls):
            is_barred = any(id(value) in barred for value in call.outputs)
            if not is_barred and any(id(value) in affected for value in self._values_read_by(number)):
                calls.add(number)
                affected.update(map(id, call.outputs))
        return calls, affected

    # -- runs ----------------------------------------------------------------------------------------------------

    def run(self, swap: Mapping[Key, Swap] | None = None, *, check_decisions: bool = True) -> dict[str, torch.Tensor]:
        """Run it again, and return the values of its outputs by label.

        Without a swap all its operations run.  With swaps only those run that depend on one and that an output
        depends on; random operations draw the recorded numbers.  The model, its inputs and the saved activations stay
        as they are.

        Parameters
        ----------
        swap
            What to put in the place of recorded values: a number for each element, a tensor, or a function of the
            tensor, by the key of an input or operation of this subgraph, or by a parameter's name.
        check_decisions
            Whether to raise if a swap changes a value that Python read (``if x.sum() > 0``, ``x.item()``), for the
            model might then run other operations; False goes on with the recorded ones.

        Raises
        ------
        LookupKeyError, ValueError, TypeError
            If a key or a swap does not fit this subgraph.
        DecisionChangedError
            See `check_decisions`.
        NotReplayableError
            If an operation cannot be run again; the message names it.
        """
        swaps = self._swaps(swap) if swap else None
        return self.run_with(swaps, check_decisions)

    def run_with(
        self, swaps: Swaps | None = None, check_decisions: bool = True, player_type: type[Player] = Player
    ) -> dict[str, torch.Tensor]:
        """Run with checked replacements, and another kind of player."""
        try:
            return Run(self, swaps, check_decisions, feeds=True, player_type=player_type).outputs()
        except _OtherMemoryError:  # what was fed does not share the memory that the recorded tensors shared
            return Run(self, swaps, check_decisions, feeds=False, player_type=player_type).outputs()

    def _swaps(self, swap: Mapping[Key, Swap]) -> Swaps:
        """Return the checked replacements."""
        swaps: Swaps = {}
        members = set(self.calls)
        for key, new in swap.items():
            for label, value in self._swappable(key):
                if value.call not in members and id(value) not in self.outside:
                    raise ValueError(f"swap: {label!r} is neither an input nor an operation of {self!r}")
                swaps[id(value)] = Replacement(label, value, new)
        return swaps

    def _swappable(self, key: Key) -> list[tuple[str, Value]]:
        parameters = {source.name: source for source in self.recording.sources if source.kind == "parameter"}
        if key in parameters and key not in self.history:
            return [(str(key), parameters[str(key)].value)]
        try:
            return [(node.label, node.value) for node in self._made([key])]
        except LookupKeyError as error:
            names = ", ".join(parameters)
            raise LookupKeyError(f"{error}; parameters: {names:.200}" if isinstance(key, str) else str(error)) from None

    def to_fx(self) -> GraphModule:
        """Return it as a module of `torch.fx`: its `inputs` without constants are the arguments, `outputs` the results.

        The module is bit-equal to the recording, also under `torch.compile`.  Sizes and other arguments are those of
        the recorded pass.  It shares the model's parameters and buffers, under their names, except those that the pass
        overwrote, which it has copies of.

        Raises
        ------
        NotExportableError
            If an operation cannot be exported; the message names it and the reason.
        """
        from pytest_torchlens.replay.export import to_fx  # torch.fx takes time to import

        return to_fx(self)

    def label_of(self, value: Value) -> str:
        """Return the label of a value, or what it is where it has none."""
        labels = (node.label for node in self._nodes.values() if node.value is value and node.kind != "output")
        if value.call < 0:
            return next(labels, self.recording.sources[value.position].label)
        return next(labels, self.history.label(value.call))


class _OtherMemoryError(Exception):
    """A tensor does not hold what it held when it was recorded: its memory is shared otherwise."""


class Run:
    """One run of a subgraph: what runs, what is fed from the saved activations, and the values that come out."""

    def __init__(
        self,
        subgraph: Subgraph,
        swaps: Swaps | None,
        check_decisions: bool,
        *,
        feeds: bool,
        player_type: type[Player],
    ) -> None:
        self._subgraph = subgraph
        self._recording = subgraph.recording
        self._swaps = swaps or {}
        self._feeds = feeds
        self._player_type = player_type
        calls, affected = subgraph.descendants(self._swaps, subgraph.outside)
        self._affected = affected
        self._must_run = set(subgraph.calls) if swaps is None else calls
        self._shared = subgraph.shared
        self._checks = check_decisions
        self._decisions = self._affected_decisions() if check_decisions else []
        self.numbers: set[int] = set()
        """Numbers of the calls that run."""
        self._fed: dict[int, dict[int, Value]] = {}
        """Values to feed, by number of the call that made them and by id."""
        self._plan()

    def _affected_decisions(self) -> list[tuple[int, Escape]]:
        """Return what Python read of affected values before the last operation; all for an output of the model."""
        last = self._subgraph.last_decision
        escapes = [(index, one) for index, one in enumerate(self._recording.escapes) if one.call <= last]
        return [entry for entry in escapes if any(id(value) in self._affected for value in read_by_python(entry[1]))]

    def _plan(self) -> None:
        """Find what runs and what is fed, from the outputs back."""
        waiting = [value for read in self._subgraph.ends.values() for value in values_in(read)]
        waiting += [value for _, escape in self._decisions for value in read_by_python(escape)]
        seen: set[int] = set()
        while waiting:
            value = waiting.pop()
            if id(value) in seen or value.call < 0:
                continue
            seen.add(id(value))
            if self._is_fed(value):
                self._fed.setdefault(value.call, {})[id(value)] = value
            elif value.call not in self.numbers:
                self._add(value)
                waiting += self._subgraph._values_read_by(value.call)

    def _add(self, value: Value) -> None:
        """Note that the call that makes a value runs; raise if a swap would reach a value that it must not reach."""
        self.numbers.add(value.call)
        if value.call in self._must_run:
            return
        if any(id(read) in self._affected for read in self._subgraph._values_read_by(value.call)):
            label = self._subgraph.label_of(value)
            raise NotReplayableError(
                f"{label} is read from outside of this subgraph, and its activation was not saved: "
                "record with layers_to_save='all', or swap it too"
            )

    def _is_fed(self, value: Value) -> bool:
        """Return whether a value need not be computed."""
        if not self._feeds or value.slot in self._shared:
            return False
        return self._is_replaced(value) or (value.call not in self._must_run and self._saved(value) is not None)

    def _saved(self, value: Value) -> torch.Tensor | None:
        """Return the saved activation, if it is that of the recorded pass."""
        stream = self._recording.stream
        tensor = value.tensor
        if tensor is None and stream is not None and stream.has(value):
            tensor = stream.read(value)
        return tensor if tensor is not None and value.digest != "" and holds(tensor, value) else None

    def outputs(self) -> dict[str, torch.Tensor]:
        """Run, and return the values of the outputs by label."""
        calls = self._recording.calls
        if any(calls[number].info.kind is Kind.GRADIENT for number in self.numbers) and self._feeds and self._fed:
            raise _OtherMemoryError  # autograd needs the whole graph
        generators = Generators()
        self.player = self._player_type(self._recording, self.numbers)
        self._results: dict[str, torch.Tensor] = {}
        self._borrowed: set[int] = set()
        """Memory of saved activations."""
        try:
            with torch._C.DisableTorchFunction(), self.player:
                self._sources()
                for number in sorted(self.numbers | self._fed.keys()):
                    self._step(number, calls[number])
                return self._in_order()
        finally:
            generators.restore()

    def _in_order(self) -> dict[str, torch.Tensor]:
        """Return the outputs: those of the model as they are at the end, others as they were when they were made."""
        of_model = self._subgraph.model_outputs
        ends = self._subgraph.ends.items()
        for label, read in ends:
            if label in of_model and not self.player.agrees(read):
                self._refuse_memory(label)
        return {
            label: self.player.at(value_of(read).slot) if label in of_model else self._results[label]
            for label, read in ends
        }

    def _sources(self) -> None:
        """Check the sources, and swap some of them."""
        read = [value for number in self.numbers for value in self._subgraph._values_read_by(number)]
        read += [value for each in self._subgraph.ends.values() for value in values_in(each)]
        for position in {value.position for value in read if value.call < 0}:
            source = self._recording.sources[position]
            if not _is_unchanged(source) and not self._is_replaced(source.value):
                raise NotReplayableError(f"{source.label} was changed after the pass was recorded: record it again")
        for value in {id(value): value for value in read if value.call < 0}.values():
            if id(value) in self._swaps:
                self.player.replace(value.slot, self._swaps[id(value)].tensor(partial(self.player.at, value.slot)))
            self._note(value)

    def _is_replaced(self, value: Value) -> bool:
        """Return whether a swap needs nothing of the value itself."""
        return id(value) in self._swaps and not self._swaps[id(value)].is_function

    def _step(self, number: int, call: Call) -> None:
        if number in self.numbers:
            self._play(number, call)
        else:
            for value in self._fed[number].values():
                self._feed(number, value)

    def _feed(self, number: int, value: Value) -> None:
        """Put a saved activation, or what replaces it, in the place of a value."""
        swap, borrow = self._swaps.get(id(value)), partial(self._borrow, value)
        self.player.put(value, borrow() if swap is None else swap.tensor(borrow), number)
        self._note(value)

    def _borrow(self, value: Value) -> torch.Tensor:
        """Return a saved activation without its graph, and note its memory."""
        saved = self._saved(value)
        if saved is None:
            raise NotReplayableError(f"the saved activation of {self._subgraph.label_of(value)} was changed")
        self._borrowed.add(storage_key(saved))
        return duplicate(saved) if is_wrapper(saved) or not storage_key(saved) else detached(saved)

    def _play(self, number: int, call: Call) -> None:
        returned, outputs = self._played(number, call)
        self.player.store_all(number, call, returned)
        for value, tensor in zip(call.outputs, outputs, strict=True):
            if id(value) in self._swaps:
                self._replace(call, value, tensor)
            self._note(value)
        self.player.free(number)

    def _played(self, number: int, call: Call) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Run a call; return what it returned, and the tensors for its recorded outputs."""
        player, label = self.player, self._subgraph.history.label
        if player.wrong_edges(call):
            self._refuse_memory(label(number))
        self._protect(call)
        try:
            returned, outputs = player.play(number, call, player.arguments(call))
        except Exception as error:
            raise NotReplayableError(f"{label(number)} cannot be run again: {error}") from error
        if number in player.not_replayed:
            raise NotReplayableError(f"{label(number)} {self._recording.code_in_gradients[number].reason}")
        if len(outputs) != len(call.outputs):
            raise NotReplayableError(f"{label(number)} gave {len(outputs)} tensors, recorded are {len(call.outputs)}")
        if player.wrong_base(call, outputs):
            self._refuse_memory(label(number))
        return returned, outputs

    def _refuse_memory(self, label: str) -> NoReturn:
        """Raise because a tensor does not hold the value that is recorded for it, with the writes that show in it."""
        if self._feeds:
            raise _OtherMemoryError
        swapped = "; swap the operation that writes instead of a view that it writes through" if self._swaps else ""
        raise NotReplayableError(f"{label} reads memory that is not written here as it was when recorded{swapped}")

    def _protect(self, call: Call) -> None:
        """Copy what a call is about to overwrite, if a result or a saved activation has the same memory."""
        moved = [value_of(read).slot for _, read in edges_in(call)] if call.info.moves else []
        for slot in dict.fromkeys([*call.writes, *moved]):
            tensor = self.player.at(slot)
            key = storage_key(tensor)
            for label, result in self._results.items():
                if result is tensor or (key and storage_key(result) == key):
                    with torch.enable_grad():
                        self._results[label] = result.clone()
            if key in self._borrowed:
                self.player.replace(slot, _copy(tensor))

    def _replace(self, call: Call, value: Value, tensor: torch.Tensor) -> None:
        """Put a swap in the place of an output; what an operation wrote into shared memory is written over there."""
        new = self._swaps[id(value)].tensor(lambda: tensor)
        if value.slot in call.writes and value.slot in self._shared:
            self._refuse_memory_of_user(value, tensor)
            tensor.copy_(new)
        else:
            self.player.replace(value.slot, new)

    def _refuse_memory_of_user(self, value: Value, tensor: torch.Tensor) -> None:
        """Raise if a tensor is over the memory of an input, parameter or buffer, as after ``y.data = x``."""
        for source in self._recording.sources:
            if storage_key(tensor) and storage_key(source.live) == storage_key(tensor):
                label = self._subgraph.label_of(value)
                raise NotReplayableError(f"{label} cannot be swapped: it is in the memory of {source.label}")

    def _note(self, value: Value) -> None:
        """Note an output of the subgraph, and check what Python read of a value."""
        tensor = self.player.at(value.slot)
        if self._checks and shape_of(tensor) != value.shape:
            raise DecisionChangedError(
                f"{self._subgraph.label_of(value)} has shape {tuple(tensor.shape)} now, {tuple(value.shape)} then: the "
                "model might run other operations; check_decisions=False goes on with the recorded ones"
            )
        for label, read in self._subgraph.ends.items():
            if read is value:
                self._results[label] = tensor
        for index, escape in self._decisions:
            if any(read is value for read in read_by_python(escape)) and not holds(tensor, value):
                self._check_decision(index, escape, tensor)

    def _check_decision(self, index: int, escape: Escape, tensor: torch.Tensor) -> None:
        now: Any = "another value"
        if escape.result is not None and escape.name in _SINGLE_READS and not escape.others:
            now = getattr(tensor.detach(), escape.name)()
            if now == escape.result or (now != now and escape.result != escape.result):  # noqa: PLR0124 - NaN
                return
        record = self._subgraph.history.escapes[index]
        was = "" if escape.result is None else f" {escape.result} then, and"
        where = f"{record.source_line or 'no known line'}{record.condition and f' ({record.condition})'}"
        raise DecisionChangedError(
            f"{escape.name} of {record.operation or 'a tensor'} gave{was} {now} now, at {where}: the model might run "
            "other operations; check_decisions=False goes on with the recorded ones"
        )


_SINGLE_READS = frozenset(["__bool__", "__int__", "__float__", "__index__", "__complex__", "item", "is_nonzero"])


def values_in(read: Read) -> tuple[Value, ...]:
    """Return the value of a read, and those of the writes that show in it."""
    return (read.value, *read.writes) if isinstance(read, Aliased) else (read,)


def _listed(keys: Keys) -> list[Key]:
    return [keys] if isinstance(keys, str | int) or not isinstance(keys, Iterable) else list(keys)


def read_by_python(escape: Escape) -> Iterator[Value]:
    """Yield the values that Python read."""
    if escape.value is not None:
        yield escape.value
    yield from escape.others


def _slots_in_shared_memory(recording: Recording) -> set[int]:
    """Return the slots of tensors whose writes show in others, and of these: their memory must be one in a run too."""
    slots: set[int] = set()
    inside = (read for call in recording.calls for _, read in edges_in(call))
    for read in (*inside, *(read for _, read in recording.outputs)):
        if isinstance(read, Aliased) and read.writes:
            slots.add(read.value.slot)
            for write in read.writes:
                slots.update(recording.calls[write.call].writes)
    return slots


def _is_unchanged(source: Source) -> bool:
    """Return whether a source still holds what it held when it was first read, as far as that can be told."""
    if source.written or source.wrapper is not None:  # it was copied
        return True
    if source.value.digest != "":
        return holds(source.live, source.value)
    return source.version < 0 or version_of(source.live) == source.version


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides and alignment, where a tensor has them."""
    if tensor.is_quantized or tensor.layout is not torch.strided:
        return duplicate(tensor)
    return with_layout(tensor, tensor.stride(), tensor.data_ptr() % 64)
