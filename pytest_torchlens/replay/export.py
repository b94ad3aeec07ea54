"""Makes a module of `torch.fx` of a part of a recorded graph."""

from __future__ import annotations

import operator
import types
from collections.abc import Collection
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import fx

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import ambient
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.replay.player import Arguments
from pytest_torchlens.replay.player import Player
from pytest_torchlens.replay.run import Read
from pytest_torchlens.replay.run import read_by_python
from pytest_torchlens.replay.subgraph import NotExportableError
from pytest_torchlens.replay.subgraph import Subgraph


def to_fx(subgraph: Subgraph) -> fx.GraphModule:
    """Return the module; raises `NotExportableError`."""
    for reason in _reasons(subgraph):
        raise NotExportableError(reason)
    export = _Export(subgraph)
    module = export.module()
    _check_module(subgraph, module, export)
    return module


# -- what cannot be exported ---------------------------------------------------------------------------------------


def _reasons(subgraph: Subgraph) -> Iterator[str]:
    """Yield a sentence for each operation that cannot be exported."""
    members = set(subgraph.calls)
    calls = [(number, subgraph.recording.calls[number]) for number in subgraph.calls]
    for number, call in calls:
        label = subgraph.history.label(number)
        if reason := _why_not(subgraph, call) or _outside_write(subgraph, call, members):
            yield f"{label} cannot be exported: {reason}"
    yield from _reads_by_python(subgraph)


def _why_not(subgraph: Subgraph, call: Call) -> str:
    group = call.group
    while group is not None:
        if group.custom:
            return f"it is a step of the custom autograd function {group.name}, whose backward would be lost"
        group = group.parent
    info = call.info
    if info.opaque:
        return "its inside was not recorded"
    if info.kind is Kind.GRADIENT or info.layer_type in _NEEDS_AUTOGRAD:
        return "it needs the autograd graph"
    if (getattr(info.func, "__module__", None) or "").startswith(__package__.partition(".")[0]):
        return "the recorder ran it in place of what the model called"
    return _other_settings(subgraph, call)


_NEEDS_AUTOGRAD = frozenset(["make_dual", "unpack_dual", "retain_grad", "swap_tensors", "set"])


def _other_settings(subgraph: Subgraph, call: Call) -> str:
    """Return which settings differ from those of the first operation, or that it runs under autocast."""
    rows = subgraph.recording.ambient.rows
    words, first = (
        ambient.in_words(rows[call.ambient]),
        ambient.in_words(rows[subgraph.recording.calls[subgraph.calls[0]].ambient]),
    )
    differ = [name for name, word in words.items() if word != first[name] and name not in _NO_VALUES]
    if words["autocast"] != "off":
        differ = [*differ, "autocast"]
    return f"it ran with {differ[0]} {words[differ[0]]}" if differ else ""


_NO_VALUES = ("gradients", "inference mode")
"""Settings that do not change what an operation computes."""


def _outside_write(subgraph: Subgraph, call: Call, members: set[int]) -> str:
    """Return that it reads memory that was written before the subgraph begins."""
    for _, read in edges_in(call):
        if isinstance(read, Aliased) and (early := [write for write in read.writes if write.call not in members]):
            return f"it reads memory that {subgraph.label_of(early[0])} wrote, which is outside of the subgraph"
    return ""


def _reads_by_python(subgraph: Subgraph) -> Iterator[str]:
    given = {
        key for key, value in subgraph.outside.items() if value.call >= 0 or _source(subgraph, value).kind == "input"
    }
    affected = subgraph.descendants(given)[1]
    last = subgraph.last_decision
    for record, escape in zip(subgraph.history.escapes, subgraph.recording.escapes, strict=True):
        if escape.call <= last and any(id(value) in affected for value in read_by_python(escape)):
            where = f" at {record.source_line}" if record.source_line else ""
            name = record.operation or "a value"
            yield f"{name} cannot be exported: Python reads it ({record.function}){where}, and would not read it again"


def _source(subgraph: Subgraph, value: Value) -> Source:
    return subgraph.recording.sources[value.position]


# -- the graph -----------------------------------------------------------------------------------------------------


class _ResultPaths(Player):
    """Notes in `paths` where the tensors are in what each call returns, by the call's id."""

    def __init__(self, paths: dict[int, list[str]], recording: Recording, numbers: Collection[int]) -> None:
        super().__init__(recording, numbers)
        self._paths = paths

    def result(self, call: Call, arguments: Arguments) -> Any:
        """Return what the function returns."""
        result = super().result(call, arguments)
        self._paths[id(call)] = [path for path, _ in walk(result)]
        return result


class _Export:
    def __init__(self, subgraph: Subgraph) -> None:
        self._subgraph = subgraph
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        """Node of each value, by id."""
        self._copies: dict[int, fx.Node] = {}
        """Copies of values that are returned as they were made, by id."""
        self._attributes: dict[str, Any] = {}
        self._paths: dict[int, list[str]] = {}
        self._writers = [number for number in subgraph.calls if subgraph.recording.calls[number].writes]
        modes = {subgraph.recording.ambient.rows[subgraph.recording.calls[n].ambient][0] for n in subgraph.calls}
        self._detaches = len(modes) > 1
        """Whether some operations ran without gradients, and others with them."""

        self.expected: dict[str, torch.Tensor] = {}
        """The outputs of a run, by label."""
        self.given: list[str] = []
        """Labels of the inputs that are arguments; constants are attributes."""

    def module(self) -> fx.GraphModule:
        """Return the module."""
        self.expected = self._subgraph.run_with(player_for=partial(_ResultPaths, self._paths))
        self._add_inputs()
        for number in self._subgraph.calls:
            self._add_call(number, self._subgraph.recording.calls[number])
        results = tuple(self._result(label, read) for label, read in self._subgraph.ends.items())
        self._graph.output(results[0] if len(results) == 1 else results)
        name = f"{self._subgraph.history.model_name}Subgraph"
        return fx.GraphModule(self._attributes, self._graph, class_name=name)

    def _result(self, label: str, read: Read) -> fx.Node:
        """Return the node of an output: one of the model is read at the end, any other when it is made."""
        nodes = self._nodes if label in self._subgraph.model_outputs else self._nodes | self._copies
        return nodes[id(value_of(read))]

    def _add_inputs(self) -> None:
        """Add a placeholder for each input, and an attribute for each parameter, buffer and constant."""
        outside = self._subgraph.outside.values()
        values = {self._subgraph.label_of(value): value for value in outside if self._is_given(value)}
        for label in self._subgraph.inputs:
            if label in values:
                self.given.append(label)
                self._nodes[id(values[label])] = self._named(self._graph.placeholder(_identifier(label)), label)
        for value in values.values():
            if self._writers:  # the caller's tensors stay as they are
                self._nodes[id(value)] = self._graph.call_method("clone", (self._nodes[id(value)],))
        for value in outside:
            if not self._is_given(value):
                self._nodes[id(value)] = self._graph.get_attr(self._attribute(_source(self._subgraph, value)))

    def _is_given(self, value: Value) -> bool:
        return value.call >= 0 or _source(self._subgraph, value).kind == "input"

    def _attribute(self, source: Source) -> str:
        """Add a source as an attribute, and return its name; what the pass overwrote is copied."""
        name = source.name if source.kind in ("parameter", "buffer") else f"constant_{len(self._attributes)}"
        tensor = source.live
        if source.written and source.value.tensor is not None:
            tensor = duplicate(source.value.tensor)
            if isinstance(source.live, torch.nn.Parameter):
                tensor = torch.nn.Parameter(tensor, source.live.requires_grad)
        self._attributes[name] = tensor
        return name

    def _named(self, node: fx.Node, label: str) -> fx.Node:
        node.meta["label"] = label
        return node

    def _add_call(self, number: int, call: Call) -> None:
        if call.info.bookkeeping:  # it computes nothing
            self._nodes[id(call.outputs[0])] = self._node_of(edges_in(call)[0][1])
            return
        label = self._subgraph.history.label(number)
        try:
            args, kwargs = self._filled(call.args), self._filled(call.kwargs)
            result = self._create(call, args, kwargs, label)
            self._add_outputs(number, call, result)
        except _OddArgumentError as error:
            raise NotExportableError(f"{label} cannot be exported: {error}") from error

    def _create(self, call: Call, args: Any, kwargs: Any, label: str) -> fx.Node:
        kind, target, args = _target(call.info.func, call.info.name, args)
        name = _identifier(label.partition(" ")[0])
        return self._named(self._graph.create_node(kind, target, args, kwargs, name=name), label)

    def _add_outputs(self, number: int, call: Call, result: fx.Node) -> None:
        by_slot = {value_of(read).slot: self._node_of(read) for _, read in edges_in(call)}
        paths = self._paths.get(id(call), [])
        for place, value in enumerate(call.outputs):
            node = self._at(result, paths[place]) if call.returned else by_slot[value.slot]
            if self._detaches and not self._subgraph.recording.ambient.rows[call.ambient][0]:
                node = self._graph.call_method("detach", (node,))
            self._nodes[id(value)] = node
            if self._writers and self._writers[-1] > number and self._is_end(value):
                self._copies[id(value)] = self._graph.call_method("clone", (node,))

    def _is_end(self, value: Value) -> bool:
        return any(read is value for read in self._subgraph.ends.values())

    def _at(self, result: fx.Node, path: str) -> fx.Node:
        """Return the node of the tensor at a path in a result."""
        for part in path.split(".") if path else ():
            if not part.isdigit():
                raise _OddArgumentError(f"it returns its tensors by name ({part})")
            result = self._graph.call_function(operator.getitem, (result, int(part)))
        return result

    def _node_of(self, read: Read) -> fx.Node:
        return self._nodes[id(value_of(read))]

    def _filled(self, template: Any) -> Any:
        """Return recorded arguments with nodes in the place of values."""
        kind = type(template)
        if kind is Value or kind is Aliased:
            return self._node_of(template)
        if kind is torch.Size:
            return tuple(template)
        if kind in ATOMS and kind not in (type, types.FunctionType, torch.Generator):
            return template
        if kind in (tuple, list):
            return kind(map(self._filled, template))
        if kind is dict:
            return {key: self._filled(item) for key, item in template.items()}
        if kind is slice:
            return slice(*map(self._filled, (template.start, template.stop, template.step)))
        raise _OddArgumentError(f"an argument is of class {kind.__name__}")


class _OddArgumentError(Exception):
    """An argument or a result has no form in `torch.fx`."""


def _identifier(label: str) -> str:
    """Return a name for Python code: that of the third pass of a layer, ``"relu_1_2:3"``, is ``relu_1_2_3``."""
    return "".join(letter if letter.isalnum() else "_" for letter in label)


def _target(func: Any, name: str, args: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]]:
    """Return kind, target and arguments of the node for a function as a mode received it."""
    if name in _OPERATORS:
        return "call_function", _OPERATORS[name], args
    if func is getattr(torch.Tensor, name, None):
        return "call_method", name, args
    if isinstance(func, types.MethodWrapperType) and func.__name__ == "__get__":
        descriptor: Any = func.__self__
        return "call_function", getattr, (args[0], descriptor.__name__)
    if isinstance(func, types.MethodWrapperType | types.MethodType):
        raise _OddArgumentError(f"{name} is a method of an object that a module cannot hold")
    return "call_function", func, args


_OPERATORS = {"__getitem__": operator.getitem, "__setitem__": operator.setitem}


# -- the check -----------------------------------------------------------------------------------------------------


def _check_module(subgraph: Subgraph, module: fx.GraphModule, export: _Export) -> None:
    """Run the module on the recorded inputs; raise if it gives other values.  Random ones are not compared."""
    recording = subgraph.recording
    calls = [recording.calls[number] for number in subgraph.calls]
    if any(call.random is not None for call in calls) or not calls:
        return
    given = subgraph.history.subgraph(end=export.given).run() if export.given else {}
    with ambient.in_force(recording.ambient.rows[calls[0].ambient]):
        results = module(*[given[label].clone() for label in export.given])
    results = results if len(export.expected) > 1 else (results,)
    for (label, tensor), result in zip(export.expected.items(), results, strict=True):
        if fingerprint(tensor) != fingerprint(result):
            raise NotExportableError(f"{label} cannot be exported: the module gives other values than were recorded")
