"""Makes the snapshot of a forward pass from its history."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torch import nn

from pytest_torchlens.baseline.environment import class_of
from pytest_torchlens.baseline.numbers import Rerun
from pytest_torchlens.baseline.snapshot import Measured
from pytest_torchlens.baseline.snapshot import ModuleCalled
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.snapshot import Weight
from pytest_torchlens.baseline.snapshot_file import readable
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import Node
from pytest_torchlens.records import Edge
from pytest_torchlens.records import Environment
from pytest_torchlens.records import Operation


def take(
    history: ModelHistory,
    environment: Environment,
    *,
    flops: int | None = None,
    proof: dict[str, str] | None = None,
) -> Snapshot:
    """Return what is kept of a forward pass.

    The pass is replayed once, for the numbers: no activation need be saved, and no more memory is held than in a plain
    pass.

    Parameters
    ----------
    history
        Just made; the model and its inputs must hold the values that they had before the pass.
    environment
        Where this process runs.
    flops
        Floating-point operations of the pass; None where they were not counted.
    proof
        Status of each part of the validation that was run; None without any.

    Raises
    ------
    ReferenceError
        If the model is gone.
    """
    model = history.recording.model()
    if model is None:
        raise ReferenceError(f"{history.model_name} is gone: hold the model until its snapshot is taken")
    return _Taking(history, model).snapshot(environment, {} if flops is None else {"flops": flops}, proof or {})


class _Taking:
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

    def snapshot(self, environment: Environment, totals: dict[str, int], proof: dict[str, str]) -> Snapshot:
        rerun = Rerun(self._history)
        steps = tuple(map(self._step, self._nodes, self._operations, map(rerun.alias_of, self._nodes)))
        numbers = {step.id: rerun.numbers_of(node) for step, node in zip(steps, self._nodes, strict=True)}
        return Snapshot(
            model=readable(self._history.model_name),
            totals={
                **totals,
                "operations": len(self._history.recording.calls),
                "parameters": sum(parameter.numel() for parameter in self._parameters()),
                "peak_bytes": rerun.peak_bytes,
            },
            calls=self._calls(),
            state=self._state,
            steps=steps,
            answers=tuple(self._answers()),
            output={_scrubbed(path): readable(kind) for path, kind in self._history.recording.output_kinds.items()},
            measured={class_of(environment): Measured(environment=environment, numbers=numbers, proof=proof)},
        )

    def _calls(self) -> dict[str, ModuleCalled]:
        calls = [call for call in self._history.recording.module_calls if call.parent is not None]
        return {_name(call): ModuleCalled(parent=_outer(call), kind=readable(call.module_type)) for call in calls}

    def _parameters(self) -> list[nn.Parameter]:
        model = self._history.recording.model()
        return [p for p in model.parameters() if not is_lazy(p)] if model is not None else []

    def _step(self, node: Node, operation: Operation, alias: str) -> Step:
        contiguous = node.value.contiguous
        return Step(
            id=self._ids[id(node)],
            function=operation.layer_type,
            applied=operation.func_applied_name or operation.layer_type,
            module=_module(node),
            parents=tuple(self._parents(node)),
            reads=tuple(self._reads(node)),
            arguments=tuple(_scrubbed(text) for text in _arguments(operation)),
            shape=operation.tensor_shape,
            dtype=operation.tensor_dtype.removeprefix("torch."),
            device=operation.tensor_device,
            stride=None if contiguous else operation.tensor_stride,
            alias=readable(alias),
            in_place=operation.function_is_inplace,
            index=operation.iterable_output_index,
            source_line=operation.source_line,
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

    def _answers(self) -> Iterator[str]:
        ids = {op.label: self._ids[id(node)] for node, op in zip(self._nodes, self._operations, strict=True)}
        for escape in self._history.escapes:
            told = escape.value if isinstance(escape.value, bool) else ""
            if told != "" or escape.branch:
                answer = f"{ids.get(escape.operation, '?')} {escape.function} {told} {escape.branch}"
                yield readable(answer.strip())


def _ids(nodes: list[Node]) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for node in nodes:
        around = _module(node)
        name = f"{around[-1] if around else ''}/{node.layer_type}"
        counts[name] += 1
        yield name if counts[name] == 1 else f"{name}.{counts[name]}"


def _module(node: Node) -> tuple[str, ...]:
    """Return the module calls around a node, outermost first, the first call of a module by its address alone."""
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


def _scrubbed(text: str) -> str:
    """Return an argument's text without what is another in each process: where an object lies in memory."""
    return readable(re.sub(r" at 0x[0-9a-fA-F]+", "", text))


def _state(model: nn.Module) -> Iterator[tuple[str, Weight]]:
    for address, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not is_lazy(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            yield readable(address), Weight(dtype=dtype, shape=tuple(tensor.shape), digest=fingerprint(tensor))
