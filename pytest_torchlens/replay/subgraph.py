"""Finds a part of a recorded graph: the calls between some values and others.  A `Run` runs it again."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import Node
from pytest_torchlens.records import close
from pytest_torchlens.replay.calls import NotReplayableError
from pytest_torchlens.replay.player import Player
from pytest_torchlens.replay.run import OtherMemoryError
from pytest_torchlens.replay.run import PlayerFor
from pytest_torchlens.replay.run import Read
from pytest_torchlens.replay.run import Run
from pytest_torchlens.replay.run import needed_values
from pytest_torchlens.replay.run import slots_in_shared_memory
from pytest_torchlens.replay.swaps import EdgeSwaps
from pytest_torchlens.replay.swaps import Kind
from pytest_torchlens.replay.swaps import Replacement
from pytest_torchlens.replay.swaps import Swap
from pytest_torchlens.replay.swaps import Swaps

if TYPE_CHECKING:
    from torch.fx import GraphModule

Key = str | int
Keys = Key | Iterable[Key]


class NotExportableError(RuntimeError):
    """An operation cannot be exported; the message names it and the reason."""


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
        self,
        history: ModelHistory,
        start: Keys | None = None,
        end: Keys | Mapping[str, Read] | None = None,
        operations: Iterable[Key] | None = None,
    ) -> None:
        if not hasattr(history, "recording"):
            kind = type(history).__name__
            has = ", which has no calls that can run" if kind == "LoadedHistory" else ""
            raise TypeError(f"expected a history, got {kind}{has}: log_forward_pass(model, x) records one")
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
        self.shared = slots_in_shared_memory(self.recording)
        members = set(self.calls)
        reads = [read for number in self.calls for _, read in edges_in(self.recording.calls[number])]
        reads += self.ends.values()
        self.outside = {
            id(value): value for read in reads for value in needed_values(read) if value.call not in members
        }
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

    def _find_between(self, start: Keys | None, end: Keys | Mapping[str, Read] | None) -> None:
        self.ends = self._ends(end)
        starts = {} if start is None else {id(node.value): node for node in self._made(start)}
        calls, read = self._ancestors(self.ends.values(), starts)
        if unread := [node for key, node in starts.items() if key not in read]:
            later = max((value_of(read).call for read in self.ends.values()), default=-1) < unread[0].number
            order = ", which comes after it: name the start first" if later else ""
            raise ValueError(f"subgraph: {', '.join(self.ends)} does not depend on {unread[0].label!r}{order}")
        self.calls = sorted(calls if start is None else calls & self.descendants(starts)[0])

    def _find_among(self, operations: list[Key], end: Keys | Mapping[str, Read] | None) -> None:
        nodes = [node for key in operations for node in self.nodes_of(key)]
        if others := [node.label for node in nodes if node.call is None]:
            raise ValueError(f"subgraph: expected operations, got {others[0]!r}, which no call made")
        members = {node.number for node in nodes}
        self.calls = sorted(members)
        made = [node for node in self.history.nodes if node.number in members]
        used = [node for node in made if not node.children or any(kid.number not in members for kid in node.children)]
        self.ends = self._ends(end) if end is not None else {node.label: node.value for node in used}

    def _ends(self, keys: Keys | Mapping[str, Read] | None) -> dict[str, Read]:
        if keys is None or isinstance(keys, Mapping):
            return dict(self.model_outputs if keys is None else keys)
        nodes = [node for key in _listed(keys) for node in self.nodes_of(key)]
        return {node.label: self.model_outputs.get(node.label, node.value) for node in nodes}

    def _made(self, keys: Keys) -> list[Node]:
        nodes = [node for key in _listed(keys) for node in self.nodes_of(key)]
        if outputs := [node for node in nodes if node.kind == "output"]:
            made = self.label_of(outputs[0].value)
            raise ValueError(f"{outputs[0].label!r} is an output of the model, where nothing can start: name {made!r}")
        return nodes

    def nodes_of(self, key: Key) -> list[Node]:
        """Return the nodes that a key of the history names; raises `LookupKeyError` with the nearest key."""
        found: Any = self.history[key]
        return [self._nodes[operation.label] for operation in getattr(found, "passes", (found,))]

    def _ancestors(self, reads: Iterable[Read], given: Collection[int]) -> tuple[set[int], set[int]]:
        """Return the calls that make some values, as far as those that are given, and the ids of what they read."""
        calls: set[int] = set()
        seen: set[int] = set()
        waiting = [value for read in reads for value in needed_values(read)]
        while waiting:
            value = waiting.pop()
            seen.add(id(value))
            if value.call not in calls and value.call >= 0 and id(value) not in given:
                calls.add(value.call)
                waiting += self.values_read_by(value.call)
        return calls, seen

    def values_read_by(self, number: int) -> list[Value]:
        """Return the values that a call reads, with those of the writes that show in its arguments."""
        return [value for _, read in edges_in(self.recording.calls[number]) for value in needed_values(read)]

    def descendants(
        self, values: Collection[int], barred: Collection[int] = (), changed: Collection[int] = ()
    ) -> tuple[set[int], set[int]]:
        """Return the calls that depend on some values or `changed` calls, themselves included, and what they make.

        Values are given by their ids; `barred` ones never depend.
        """
        calls: set[int] = set()
        affected = set(values)
        for number, call in enumerate(self.recording.calls):
            is_barred = any(id(value) in barred for value in call.outputs)
            if is_barred:
                continue
            if number in changed or any(id(value) in affected for value in self.values_read_by(number)):
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
            Whether to raise if a swap changes a value that Python read (``if x.sum() > 0``, ``x.item()``), or a size
            that depends on values (``x[x > 0]``), for the model might then run other operations; False goes on with
            the recorded ones.

        Raises
        ------
        LookupKeyError, ValueError, TypeError
            If a key or a swap does not fit this subgraph.
        DecisionChangedError
            See `check_decisions`.
        NotReplayableError
            If an operation cannot be run again; the message names it.
        """
        if not isinstance(swap, Mapping | None):
            raise TypeError(f"run: expected a mapping from keys to new values, got {type(swap).__name__}")
        swaps = self._swaps(swap) if swap else None
        return self.run_with(swaps, check_decisions)

    def run_with(
        self,
        swaps: Swaps | None = None,
        check_decisions: bool = True,
        player_for: PlayerFor = Player,
        edges: EdgeSwaps | None = None,
        feeds: bool = True,
    ) -> dict[str, torch.Tensor]:
        """Run with checked replacements, also of what single calls read, and the player that `player_for` returns.

        Without `feeds` all is computed from the inputs, and nothing is taken from the saved activations.
        """
        run = partial(Run, self, swaps, check_decisions, player_for=player_for, edges=edges)
        try:
            return run(feeds=feeds).outputs()
        except OtherMemoryError:  # what was fed does not share the memory that the recorded tensors shared
            return run(feeds=False).outputs()

    def _swaps(self, swap: Mapping[Key, Swap]) -> Swaps:
        """Return the checked replacements."""
        swaps: Swaps = {}
        members = set(self.calls)
        for key, new in swap.items():
            for label, value in self.swappable(key):
                if value.call not in members and id(value) not in self.outside:
                    raise ValueError(f"swap: {label!r} is neither an input nor an operation of {self!r}")
                self.check_swappable(label, value)
                swaps[id(value)] = Replacement(f"swap of {label}", Kind.of(value), new)
        return swaps

    def check_swappable(self, label: str, value: Value) -> None:
        """Raise `NotReplayableError` if nothing can be put in the place of a value."""
        if value.call >= 0 and _writes_one_memory_twice(self.recording.calls[value.call], value):
            raise NotReplayableError(f"{label} cannot be swapped: its operation wrote there by two arguments")

    def swappable(self, key: Key) -> list[tuple[str, Value]]:
        """Return label and value of all that a key of the history, or a parameter's name, names."""
        parameters = self.sources_of_model(["parameter"])
        if key in parameters and key not in self.history:
            return [(parameters[str(key)].name, parameters[str(key)].value)]
        try:
            return [(node.label, node.value) for node in self._made([key])]
        except LookupKeyError as error:
            hint = close(key, parameters) if isinstance(key, str) and "no layer" in str(error) else ""
            raise LookupKeyError(f"{error}; parameters: {hint}" if hint else str(error)) from None

    def sources_of_model(self, kinds: Collection[str] = ("parameter", "buffer")) -> dict[str, Source]:
        """Return the parameters and buffers that the pass read by name; tied ones are there by each of their names."""
        read = {source.name: source for source in self.recording.sources if source.kind in kinds}
        model = self.recording.model()
        if model is None:
            return read
        named = [*named_parameters(model, duplicates=True), *named_buffers(model, duplicates=True)]
        by_tensor = {id(tensor): read[name] for name, tensor in named if name in read}
        return {name: by_tensor[id(tensor)] for name, tensor in named if id(tensor) in by_tensor} | read

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


def _writes_one_memory_twice(call: Call, value: Value) -> bool:
    """Return whether a call wrote to the memory of a value through two of its arguments."""
    if sum(other.slot == value.slot for other in call.outputs) > 1:
        return True
    return any(len({*slots}.intersection(call.writes)) > 1 for slots in call.overlaps)


def _listed(keys: Keys) -> list[Key]:
    listed = [keys] if isinstance(keys, str | int) or not isinstance(keys, Iterable) else list(keys)
    if not listed:
        raise ValueError("subgraph: expected one key or more, got none")
    return listed
