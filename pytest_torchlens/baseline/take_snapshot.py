"""Makes the snapshot of a forward pass from its history; a replay measures the numbers of every value."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator

import torch
from torch import nn

from pytest_torchlens.baseline.environments import class_of
from pytest_torchlens.baseline.sketch import numbers_of
from pytest_torchlens.baseline.snapshot import Answer
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import ModuleCallRecord
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.snapshot import Weight
from pytest_torchlens.baseline.snapshot import stable_ids
from pytest_torchlens.baseline.snapshot_file import readable
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.storage import storage_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import Node
from pytest_torchlens.records import Edge
from pytest_torchlens.records import Environment
from pytest_torchlens.records import Operation
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.calls import replay_for


class ValueNumbers:
    """Listens to a replay, and measures each value when it is made.

    Attributes
    ----------
    peak_bytes
        The most bytes that the values of the pass held at one time, without parameters and inputs.
    """

    def __init__(self, history: ModelHistory) -> None:
        self._recording = history.recording
        self._seeded = history.random_seed_used is not None
        self._numbers: dict[int, Numbers] = {}
        self._aliases: dict[int, str] = {}
        self._blank: set[int] = set()
        self._memory = _Memory()
        self._returned = {id(value_of(read)) for _, read in self._recording.outputs}
        self._places: dict[int, tuple[str, Value]] = {}
        """Path and value of each argument of the current call, by its memory."""
        for source in self._recording.sources:
            if source.kind in ("input", "constant") and source.value.tensor is not None:
                self._numbers[id(source.value)] = numbers_of(source.value.tensor, source.value.fingerprint)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that values held at one time."""
        return self._memory.peak

    def numbers_of(self, node: Node) -> Numbers:
        """Return the numbers of a node's value; only its digest if it was not replayed."""
        return self._numbers.get(id(node.value)) or Numbers(digest=node.value.fingerprint)

    def alias_of(self, node: Node) -> str:
        """Return the argument whose memory a node's value shares; ``""`` if it has its own."""
        return self._aliases.get(id(node.value), "") if node.call is not None else ""

    def before(self, player: Player, call: Call) -> None:
        """Note the memory of the arguments of a call that is about to run."""
        reads = [(path, value_of(read)) for path, read in reversed(edges_in(call))]
        self._places = {storage_key(player.at(value.slot)): (path, value) for path, value in reads}

    def after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        """Measure the outputs of a call that has run."""
        for value, output in zip(call.outputs, outputs, strict=True):
            alias, base = self._places.get(storage_key(output) or -1, ("", None))
            self._aliases[id(value)] = alias
            is_view = base is not None and value.slot not in call.writes
            if number in self._recording.uninitialised or (is_view and id(base) in self._blank):
                self._blank.add(id(value))
            self._numbers[id(value)] = self._look(call, value, output, is_view)
        self._memory.add(outputs)

    def _look(self, call: Call, value: Value, output: torch.Tensor, is_view: bool) -> Numbers:
        """Return the numbers of a value; only the digest of a view inside, nothing of uninitialised memory."""
        if id(value) in self._blank:
            return Numbers()
        if is_view and id(value) not in self._returned:
            return Numbers(digest=value.fingerprint)
        unstable = fingerprint(output) != value.fingerprint or (call.random is not None and not self._seeded)
        return numbers_of(output, value.fingerprint, unstable=unstable)


class _Memory:
    """Counts the bytes of tensors as long as they live."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.peak = 0

    def add(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._storages = {key: entry for key, entry in self._storages.items() if entry[0]() is not None}
        for tensor in tensors:
            if (storage := storage_of(tensor)) is not None:
                self._storages[storage_key(tensor)] = weakref.ref(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._storages.values()))


def take(
    history: ModelHistory,
    environment: Environment,
    *,
    flops: int | None = None,
    proof: dict[str, str] | None = None,
    numbers: ValueNumbers | None = None,
) -> Snapshot:
    """Return the snapshot of a forward pass.

    The numbers come from a replay, so no activation needs to be saved, and memory use is that of a plain pass.

    Parameters
    ----------
    history
        The pass; the model and its inputs must hold the values that they had before it.
    environment
        The environment of this process.
    flops
        Floating-point operations of the pass; None if they were not counted.
    proof
        Status of each part of the validation that was run; None without any.
    numbers
        What listened to a whole replay of the pass; None to replay it here.

    Raises
    ------
    ReferenceError
        If the model no longer exists.
    """
    model = history.recording.model()
    if model is None:
        raise ReferenceError(f"{history.model_name} is gone: hold the model until its snapshot is taken")
    if numbers is None:
        numbers = ValueNumbers(history)
        replay_for(numbers, history.recording)
    totals = {} if flops is None else {"flops": flops}
    return _SnapshotMaker(history, model).snapshot(environment, totals, proof or {}, numbers)


class _SnapshotMaker:
    def __init__(self, history: ModelHistory, model: nn.Module) -> None:
        self._history = history
        self._nodes = [node for node in history.nodes if node.kind != "buffer"]
        records = dict(zip(map(id, history.nodes), history.operations, strict=True))
        self._operations: list[Operation] = [records[id(node)] for node in self._nodes]
        self._ids = dict(zip(map(id, self._nodes), _ids(self._nodes), strict=True))
        self._state = dict(_state(model))
        self._sources = {
            id(source.value): source
            for source in history.recording.sources
            if source.kind in ("parameter", "buffer") and readable(source.name) in self._state
        }

    def snapshot(
        self, environment: Environment, totals: dict[str, int], proof: dict[str, str], measured: ValueNumbers
    ) -> Snapshot:
        steps = tuple(map(self._step, self._nodes, self._operations, map(measured.alias_of, self._nodes)))
        numbers = {step.id: measured.numbers_of(node) for step, node in zip(steps, self._nodes, strict=True)}
        return Snapshot(
            model=readable(self._history.model_name),
            totals={
                **totals,
                "operations": len(self._history.recording.calls),
                "parameters": sum(parameter.numel() for parameter in self._parameters()),
                "peak_bytes": measured.peak_bytes,
            },
            calls=self._calls(),
            state=self._state,
            steps=steps,
            answers=tuple(self._answers()),
            output={
                _without_memory_addresses(path): readable(kind)
                for path, kind in self._history.recording.output_kinds.items()
            },
            measured={class_of(environment): EnvironmentNumbers(environment=environment, numbers=numbers, proof=proof)},
        )

    def _calls(self) -> dict[str, ModuleCallRecord]:
        calls = [call for call in self._history.recording.module_calls if call.parent is not None]
        return {_name(call): ModuleCallRecord(parent=_outer(call), kind=readable(call.module_type)) for call in calls}

    def _parameters(self) -> list[nn.Parameter]:
        model = self._history.recording.model()
        return [p for _, p in named_parameters(model) if not is_lazy(p)] if model is not None else []

    def _step(self, node: Node, operation: Operation, alias: str) -> Step:
        contiguous = node.value.contiguous
        return Step(
            id=self._ids[id(node)],
            function=operation.layer_type,
            applied=operation.func_applied_name or operation.layer_type,
            module=_module(node),
            parents=tuple(self._parents(node)),
            reads=tuple(self._reads(node)),
            arguments=tuple(_without_memory_addresses(text) for text in _arguments(operation)),
            shape=operation.tensor_shape,
            dtype=operation.tensor_dtype.removeprefix("torch."),
            device=operation.tensor_device,
            stride=None if contiguous else operation.tensor_stride,
            alias=readable(alias),
            in_place=operation.function_is_inplace,
            index=operation.iterable_output_index,
            source_place=operation.source_place,
        )

    def _parents(self, node: Node) -> Iterator[Edge]:
        for parent, argument, through_write in node.parents:
            if parent.kind != "buffer":
                yield Edge(self._ids[id(parent)], readable(argument), through_write)

    def _reads(self, node: Node) -> Iterator[Edge]:
        if node.call is not None:
            for argument, read in edges_in(node.call):
                source = self._sources.get(id(value_of(read)))
                if source is not None:
                    yield Edge(readable(source.name), readable(argument))

    def _answers(self) -> Iterator[Answer]:
        ids = {op.label: self._ids[id(node)] for node, op in zip(self._nodes, self._operations, strict=True)}
        for escape in self._history.escapes:
            value = escape.value if isinstance(escape.value, bool) else None
            if value is not None or escape.branch:
                yield Answer(ids.get(escape.operation, "?"), readable(escape.function), value, escape.branch)


def _ids(nodes: list[Node]) -> Iterator[str]:
    return stable_ids(((_module(node) or ("",))[-1], node.layer_type) for node in nodes)


def _module(node: Node) -> tuple[str, ...]:
    """Return the module calls around a node, outermost first; a module's first call goes by the address alone."""
    if node.call is None or node.call.module is None:
        return ()
    inside_out = [_name(call) for call in node.call.module.stack() if call.parent is not None]
    return tuple(reversed(inside_out))


def _name(call: ModuleCall) -> str:
    return readable(call.address if call.number == 1 else call.label)


def _outer(call: ModuleCall) -> str:
    return _name(call.parent) if call.parent is not None and call.parent.parent is not None else ""


def _arguments(operation: Operation) -> Iterator[str]:
    yield from operation.func_position_args_non_tensor
    yield from operation.func_keyword_args_non_tensor


def _without_memory_addresses(text: str) -> str:
    """Return an argument's text without memory addresses, which differ in each process."""
    return readable(re.sub(r" at 0x[0-9a-fA-F]+", "", text))


def _state(model: nn.Module) -> Iterator[tuple[str, Weight]]:
    for address, tensor in [*named_parameters(model), *named_buffers(model)]:
        if not is_lazy(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            yield readable(address), Weight(dtype=dtype, shape=tuple(tensor.shape), digest=fingerprint(tensor))
