"""The graph: a node for each tensor that has a part in the result, with its parents and children."""

from __future__ import annotations

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.functions import SHAPE_OF_FIRST
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.capture.values import values_in


class Node:
    """An operation, an input, an output, a buffer or a constant.

    Attributes
    ----------
    kind
        ``"operation"``, ``"input"``, ``"output"``, ``"buffer"`` or ``"constant"``.
    value
        The tensor's state; that of the parent for an output.
    number, call
        The call that made it; -1 and None for all but operations.
    source
        Where it comes from; None for operations and outputs.
    parents
        Node, argument path, and whether it is reached through a write to shared memory.
    parameters
        Parameters among the arguments.
    children
        Nodes that read it, each once, in order.
    from_input, to_output
        Whether it descends from an input, and leads to an output.
    entered, exited
        Module calls that its value goes into and comes out of, in the order of the calls.
    is_condition, in_cond_branch
        Whether a condition of the model's code read its value, and whether it serves only conditions.
    passes, pass_num
        All operations of its layer in execution order, itself included, and which of them it is, from 1.
    layer_label, label_w_pass, label
        ``"conv2d_3_7"``; with the number of the pass, ``"conv2d_3_7:1"``; and the one of these that is its own: with
        the pass if its layer has several.
    """

    __slots__ = (
        "call",
        "children",
        "entered",
        "exited",
        "from_input",
        "in_cond_branch",
        "is_condition",
        "kind",
        "label",
        "label_w_pass",
        "layer_label",
        "layer_total_num",
        "layer_type",
        "layer_type_num",
        "number",
        "operation_num",
        "parameters",
        "parents",
        "pass_num",
        "passes",
        "source",
        "to_output",
        "value",
    )

    def __init__(
        self, kind: str, value: Value, number: int = -1, call: Call | None = None, source: Source | None = None
    ) -> None:
        self.kind = kind
        self.value = value
        self.number = number
        self.call = call
        self.source = source
        self.parents: list[tuple[Node, str, bool]] = []
        self.parameters: list[Source] = []
        self.children: list[Node] = []
        self.from_input = kind == "input"
        self.to_output = kind == "output"
        self.entered: list[ModuleCall] = []
        self.exited: list[ModuleCall] = []
        self.is_condition = False
        self.in_cond_branch = False
        self.passes: list[Node] = [self]
        self.pass_num = 1
        self.layer_type = ""
        self.layer_label = self.label_w_pass = self.label = ""
        self.layer_type_num = 0
        self.layer_total_num = -1
        self.operation_num = -1


def build_nodes(recording: Recording) -> list[Node]:
    """Return the nodes in execution order, inputs first, outputs last, other sources before their first use.

    An operation has a node if it descends from an input, leads to an output, or is an ancestor of one that does.
    Sources that none of these reads have no node.
    """
    graph = _Graph(recording)
    nodes = graph.sources("input")
    for number, call in enumerate(recording.calls):
        nodes.extend(graph.add_call(number, call))
    for _, value in recording.outputs:
        nodes.extend(graph.add_output(value))
    _mark_output_ancestors(nodes)
    connected = _with_ancestors(nodes)
    _link_children(connected)
    connected = [node for node in connected if node.children or node.kind not in ("buffer", "constant")]
    _note_modules(recording, connected)
    return connected


class _Graph:
    def __init__(self, recording: Recording) -> None:
        self._sources = recording.sources
        self._by_value: dict[int, Node] = {}
        self._parameters: dict[int, Source] = {}
        self._parameter_by_slot: dict[int, Source] = {}
        for source in recording.sources:
            if source.kind == "parameter":
                self._parameters[id(source.value)] = source
                self._parameter_by_slot[source.value.slot] = source
        self._new_sources: list[Node] = []

    def sources(self, kind: str) -> list[Node]:
        return [self._add(Node(kind, source.value, source=source)) for source in self._sources if source.kind == kind]

    def add_call(self, number: int, call: Call) -> list[Node]:
        """Return the call's nodes, after those of the sources that it reads first."""
        self._new_sources = []
        edges = edges_in(call)
        if call.info.bookkeeping:
            self._share_node(call.outputs[0], edges[0][1])
            return self._new_sources
        outputs = [Node("operation", value, number, call) for value in call.outputs]
        for node in outputs:
            self._connect(node, edges)
        for node in outputs:
            self._add(node)
        return self._new_sources + outputs

    def add_output(self, value: Value | Aliased) -> list[Node]:
        """Return an output's node, after that of a source that is one of the outputs."""
        self._new_sources = []
        node = Node("output", value_of(value))
        self._connect(node, (("", value),))
        return [*self._new_sources, node]

    def _connect(self, node: Node, edges: tuple[tuple[str, Value | Aliased], ...]) -> None:
        for path, leaf in edges:
            value, *writes = values_in(leaf)
            if id(value) in self._parameters:
                node.parameters.append(self._parameters[id(value)])
            else:
                node.parents.append((self._node_of(value), path, False))
                # forward may write to a parameter, as a lazy layer does
                if value.slot in self._parameter_by_slot:
                    node.parameters.append(self._parameter_by_slot[value.slot])
            node.parents.extend((self._node_of(write), path, True) for write in writes)
        if node.call is None or node.call.info.layer_type not in SHAPE_OF_FIRST:
            node.from_input = node.from_input or any(parent.from_input for parent, _, _ in node.parents)

    def _share_node(self, value: Value, leaf: Value | Aliased) -> None:
        """Give a value the same node, or parameter, as the value that was read."""
        former = value_of(leaf)
        if id(former) in self._parameters:
            self._parameters[id(value)] = self._parameters[id(former)]
        else:
            self._by_value[id(value)] = self._node_of(former)

    def _node_of(self, value: Value) -> Node:
        node = self._by_value.get(id(value))
        if node is None:
            source = self._sources[value.position]
            node = self._add(Node(source.kind, value, source=source))
            self._new_sources.append(node)
        return node

    def _add(self, node: Node) -> Node:
        self._by_value[id(node.value)] = node
        return node


def _mark_output_ancestors(nodes: list[Node]) -> None:
    for node in reversed(nodes):
        if node.to_output:
            for parent, _, _ in node.parents:
                parent.to_output = True


def _with_ancestors(nodes: list[Node]) -> list[Node]:
    """Return inputs, outputs, what descends from inputs or leads to outputs, and all ancestors of these."""
    ids: set[int] = set()
    for node in reversed(nodes):
        if id(node) in ids or node.kind in ("input", "output") or node.from_input or node.to_output:
            ids.add(id(node))
            ids.update(id(parent) for parent, _, _ in node.parents)
    return [node for node in nodes if id(node) in ids]


def _link_children(nodes: list[Node]) -> None:
    for node in nodes:
        for parent, _, _ in node.parents:
            if not parent.children or parent.children[-1] is not node:
                parent.children.append(node)


def _note_modules(recording: Recording, nodes: list[Node]) -> None:
    node_by_value = by_value(nodes)
    for call in recording.module_calls:
        if call.parent is None:
            continue
        for value in dict.fromkeys(call.inputs):
            if (node := node_by_value.get(id(value))) is not None:
                node.entered.append(call)
        for value in dict.fromkeys(call.outputs):
            if (node := node_by_value.get(id(value))) is not None:
                node.exited.append(call)
    for node in nodes:
        node.exited.sort(key=_depth, reverse=True)


def _depth(call: ModuleCall) -> int:
    return sum(1 for _ in call.stack())


def by_value(nodes: list[Node]) -> dict[int, Node]:
    """Return the node of each value by the value's id; an output's value belongs to the node that made it."""
    return {id(node.value): node for node in nodes if node.kind != "output"}


def unlink(nodes: list[Node]) -> None:
    """Break the reference cycles among nodes that are no longer needed, so that their tensors are freed at once."""
    for node in nodes:
        node.passes, node.parents, node.children = [], [], []
