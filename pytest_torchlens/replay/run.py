"""Runs a part of a recorded graph: finds which calls must run, and takes the rest from the saved activations."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Iterator
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
from pytest_torchlens.capture import ambient
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.fingerprint import holds
from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.functions import is_operator
from pytest_torchlens.capture.functions import overloads_of
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.memory import detached
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import with_layout
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import shape_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.capture.values import version_of
from pytest_torchlens.capture.wrappers import is_wrapper
from pytest_torchlens.replay.calls import NotReplayableError
from pytest_torchlens.replay.player import Player
from pytest_torchlens.replay.player import as_non_leaf
from pytest_torchlens.replay.swaps import EdgeSwaps
from pytest_torchlens.replay.swaps import Swaps

if TYPE_CHECKING:
    from pytest_torchlens.replay.subgraph import Subgraph

Read = Value | Aliased
PlayerFor = Callable[[Recording, set[int]], Player]
"""Returns the player for a recording and the numbers of the calls that run."""


class DecisionChangedError(RuntimeError):
    """A swap changes a value that Python read, so the model might have run other operations after it."""


class OtherMemoryError(Exception):
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
        player_for: PlayerFor,
        edges: EdgeSwaps | None = None,
    ) -> None:
        self._subgraph = subgraph
        self._recording = subgraph.recording
        self._swaps = swaps or {}
        self._edges = edges or {}
        self._feeds = feeds
        self._player_for = player_for
        self._descendants, self._affected = subgraph.descendants(self._swaps, subgraph.outside, self._edges)
        """Numbers of the calls that depend on a swap, and the ids of the values that do."""
        self._labels: defaultdict[int, list[str]] = defaultdict(list)
        """Labels of its outputs by the id of what is read."""
        for label, read in subgraph.ends.items():
            self._labels[id(read)].append(label)
        self._must_run = set(subgraph.calls) if swaps is None else self._descendants
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

    def _affected_sizes(self) -> list[Value]:
        """Return the affected values whose sizes depend on values, and Python may have read: of ``x[x > 0]``."""
        numbers = [number for number in sorted(self._descendants) if number <= self._subgraph.last_decision]
        calls = [self._recording.calls[number] for number in numbers]
        return [value for call in calls if _has_sizes_from_values(call) for value in call.outputs]

    def _plan(self) -> None:
        """Find what runs and what is fed, from the outputs back."""
        waiting = [value for read in self._subgraph.ends.values() for value in needed_values(read)]
        waiting += [value for _, escape in self._decisions for value in read_by_python(escape)]
        waiting += self._affected_sizes() if self._checks else []
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
                waiting += self._subgraph.values_read_by(value.call)

    def _add(self, value: Value) -> None:
        """Note that the call that makes a value runs; raise if a swap would reach a value that it must not reach."""
        self.numbers.add(value.call)
        if value.call in self._must_run:
            return
        if any(id(read) in self._affected for read in self._subgraph.values_read_by(value.call)):
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
            raise OtherMemoryError  # autograd needs the whole graph
        generators = Generators()
        self.player = self._player_for(self._recording, self.numbers)
        self._results: dict[str, torch.Tensor] = {}
        self._results_in: defaultdict[int, list[str]] = defaultdict(list)
        """Labels of the results by their memory."""
        self._borrowed: set[int] = set()
        """Memory of saved activations."""
        try:
            with torch._C.DisableTorchFunction(), ambient.in_force(self._recording.ambient.at_start), self.player:
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
        read = [value for number in self.numbers for value in self._subgraph.values_read_by(number)]
        read += [value for each in self._subgraph.ends.values() for value in needed_values(each)]
        for position in {value.position for value in read if value.call < 0}:
            source = self._recording.sources[position]
            if not is_unchanged(source) and not self._is_replaced(source.value):
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
        if swap is not None:
            self.player.apply_settings(self._recording.calls[number])
        tensor = borrow() if swap is None else swap.tensor(borrow)
        if value.requires_grad and not tensor.requires_grad and not tensor.is_inference():
            # kernels are chosen by it: that of attention by its mask
            if swap is None:
                tensor.requires_grad_()
            elif swap.is_function:
                tensor = as_non_leaf(tensor)
        self.player.put(value, tensor, number)
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
        self._check_overlap(number, call)
        self._protect(call)
        try:
            returned, outputs = player.play(number, call, player.arguments(call, self._swap_for(number)))
        except Exception as error:
            raise NotReplayableError(f"{label(number)} cannot be run again: {error}") from error
        if number in player.not_replayed:
            raise NotReplayableError(f"{label(number)} {self._recording.code_in_gradients[number].reason}")
        if len(outputs) != len(call.outputs):
            raise NotReplayableError(f"{label(number)} gave {len(outputs)} tensors, recorded are {len(call.outputs)}")
        if player.wrong_base(call, outputs):
            self._refuse_memory(label(number))
        return returned, outputs

    def _swap_for(self, number: int) -> Callable[[Value], torch.Tensor] | None:
        """Return what gives a call the tensor for each value that it reads; None if nothing is swapped for it alone."""
        swaps = self._edges.get(number)
        if swaps is None:
            return None

        def tensor_of(value: Value) -> torch.Tensor:
            at = partial(self.player.at, value.slot)
            return swaps[id(value)].tensor(at) if id(value) in swaps else at()

        return tensor_of

    def _check_overlap(self, number: int, call: Call) -> None:
        """Check that what a call reads is in the memory that it overwrites, if it was when recorded."""
        for slots in call.overlaps:
            memory = {storage_key(self.player.at(slot)) for slot in slots}
            if len(memory) > 1 or memory & self._borrowed:
                self._refuse_memory(self._subgraph.history.label(number))

    def _refuse_memory(self, label: str) -> NoReturn:
        """Raise because a tensor does not hold the value that is recorded for it, with the writes that show in it."""
        if self._feeds:
            raise OtherMemoryError
        swapped = (
            "; change the operation that writes instead of a view of it, or edit with live=True" if self._swaps else ""
        )
        raise NotReplayableError(f"{label} reads memory that is not written here as it was when recorded{swapped}")

    def _protect(self, call: Call) -> None:
        """Copy what a call is about to overwrite, if a result or a saved activation has the same memory."""
        moved = [value_of(read).slot for _, read in edges_in(call)] if call.info.moves else []
        for slot in dict.fromkeys([*call.writes, *moved]):
            tensor = self.player.at(slot)
            self._protect_results(tensor)
            if storage_key(tensor) in self._borrowed:
                self.player.replace(slot, _copy(tensor))

    def _protect_results(self, tensor: torch.Tensor) -> None:
        """Copy the results in the memory of a tensor that is about to be overwritten."""
        for label in self._results_in.pop(_memory(tensor), ()):
            self._add_result(label, _copy_in_graph(self._results[label]))

    def _add_result(self, label: str, tensor: torch.Tensor) -> None:
        self._results[label] = tensor
        self._results_in[_memory(tensor)].append(label)

    def _replace(self, call: Call, value: Value, tensor: torch.Tensor) -> None:
        """Put a swap in the place of an output; what an operation wrote into shared memory is written over there."""
        new = self._swaps[id(value)].tensor(lambda: tensor)
        if value.slot in call.writes and value.slot in self._shared:
            if storage_key(tensor) in self._borrowed:  # ``y.data = x`` put a saved activation there
                raise OtherMemoryError
            self._refuse_memory_of_user(value, tensor)
            self._protect_results(tensor)
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
        for label in self._labels.get(id(value), ()):
            self._add_result(label, tensor)
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


def _has_sizes_from_values(call: Call) -> bool:
    """Return whether the sizes of a call's results may depend on the values of its arguments."""
    name, edges = call.info.layer_type, edges_in(call)
    if name in ("getitem", "index"):
        return any(value_of(read).dtype in (torch.bool, torch.uint8) for _, read in edges[1:])
    if name in ("unique", "where"):  # made of several operators; `where` of a condition alone finds places
        return name == "unique" or len(edges) == 1
    return _is_tagged(call.info.func, call.info.name)


@functools.lru_cache(maxsize=1024)
def _is_tagged(func: Function, name: str) -> bool:
    """Return whether an operator has PyTorch's tag for sizes that depend on values, or is a custom one without tags."""
    if is_operator(func) and not is_of_torch(func):
        return True
    return any(torch.Tag.dynamic_output_shape in operator.tags for operator in overloads_of(func, name))


_SINGLE_READS = frozenset(["__bool__", "__int__", "__float__", "__index__", "__complex__", "item", "is_nonzero"])


def needed_values(read: Read) -> tuple[Value, ...]:
    """Return the values that a read needs: that of the tensor itself, and those of the writes that show in it."""
    return (read.value, *read.writes) if isinstance(read, Aliased) else (read,)


def read_by_python(escape: Escape) -> Iterator[Value]:
    """Yield the values that Python read."""
    if escape.value is not None:
        yield escape.value
    yield from escape.others


def slots_in_shared_memory(recording: Recording) -> set[int]:
    """Return the slots of tensors whose writes show in others, and of these: their memory must be one in a run too."""
    slots: set[int] = set()
    inside = (read for call in recording.calls for _, read in edges_in(call))
    for read in (*inside, *(read for _, read in recording.outputs)):
        if isinstance(read, Aliased) and read.writes:
            slots.add(read.value.slot)
            for write in read.writes:
                slots.update(recording.calls[write.call].writes)
    return slots


def is_unchanged(source: Source) -> bool:
    """Return whether a source still holds what it held when it was first read, as far as that can be told."""
    if source.written or source.wrapper is not None:  # it was copied
        return True
    if source.value.digest != "":
        return holds(source.live, source.value)
    return source.version < 0 or version_of(source.live) == source.version


def _memory(tensor: torch.Tensor) -> int:
    """Return the key of a tensor's storage; for one that has none, a key of its own."""
    return storage_key(tensor) or -id(tensor)


def _copy_in_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that gradients flow through, where autograd can follow the tensor."""
    try:
        with torch.enable_grad():
            return tensor.clone()
    except RuntimeError:  # a view made without gradients, whose base was written to with gradients
        return duplicate(tensor)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides and alignment, where a tensor has them."""
    if tensor.is_quantized or tensor.layout is not torch.strided:
        return duplicate(tensor)
    return with_layout(tensor, tensor.stride(), tensor.data_ptr() % 64)
