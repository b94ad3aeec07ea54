"""What is to be drawn: nodes, arrows and module boxes, before any of them has a look."""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchlens.draw.text import module_id
from pytest_torchlens.draw.text import node_id
from pytest_torchlens.records import Edge
from pytest_torchlens.records import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchlens.records import HistoryRecord


@dataclass(frozen=True)
class Node:
    """One operation, or a module call that is drawn as one node."""

    id: str
    operations: tuple[Operation, ...]
    boxes: tuple[str, ...]
    """The module calls whose boxes surround it, outermost first."""
    module: str | None = None
    """The module call it stands for; None for a single operation."""


@dataclass(frozen=True)
class Arrow:
    """Data that flow from one node into another, by one or more arguments."""

    tail: Node
    head: Node
    edges: tuple[Edge, ...]


@dataclass(frozen=True)
class Picture:
    """Everything the drawing shows, in execution order."""

    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    depth: int | None
    """Level from which on modules are drawn as one node; None where every operation is drawn."""
    num_left_out: int = 0
    """Operations that are not in the picture at all, because even collapsed there were too many."""


def compose(history: HistoryRecord, nesting_depth: int | None, max_nodes: int) -> Picture:
    """Return what to draw, with modules collapsed until at most `max_nodes` nodes are left."""
    graph = _Graph(history.operations)
    depth = _fitting_depth(graph, nesting_depth, max_nodes)
    nodes = graph.nodes(depth)
    shown = nodes[:max_nodes]
    left_out = sum(len(node.operations) for node in nodes[max_nodes:])
    return Picture(tuple(shown), tuple(graph.arrows(shown)), depth, left_out)


def _fitting_depth(graph: _Graph, wanted: int | None, max_nodes: int) -> int | None:
    if graph.num_nodes(wanted) <= max_nodes:
        return wanted
    deepest = min(graph.deepest, wanted or graph.deepest)
    depths = range(deepest, 0, -1)
    fitting = (depth for depth in depths if graph.num_nodes(depth) <= max_nodes)
    return next(fitting, 1 if deepest else wanted)


class _Graph:
    """The operations with the module calls around them."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self.operations = operations
        self.by_label = _labels(operations)
        self.calls = self._calls_around()
        self.sizes = self._calls_within()
        self.bottom = self._calls_of_one_operation()
        self.deepest = max(map(len, self.calls.values()), default=0)

    def nodes(self, depth: int | None) -> list[Node]:
        """Return the nodes in order of their first operation."""
        groups: dict[str, list[Operation]] = defaultdict(list)
        modules: dict[str, tuple[str, ...]] = {}
        for operation in self.operations:
            call = self._collapsed_into(operation, depth)
            key = module_id(call[-1]) if call else node_id(operation)
            groups[key].append(operation)
            modules[key] = call
        return [self._node(key, tuple(group), modules[key]) for key, group in groups.items()]

    def num_nodes(self, depth: int | None) -> int:
        """Return how many nodes there are when modules at level `depth` are collapsed."""
        collapsed = ((self._collapsed_into(operation, depth), operation) for operation in self.operations)
        return len({call or node_id(operation) for call, operation in collapsed})

    def arrows(self, nodes: list[Node]) -> Iterator[Arrow]:
        """Yield an arrow for each pair of nodes that data flow between."""
        owner = {node_id(operation): node for node in nodes for operation in node.operations}
        edges: dict[tuple[str, str], list[Edge]] = defaultdict(list)
        ends: dict[tuple[str, str], tuple[Node, Node]] = {}
        for tail, head, edge in self._flows(owner):
            edges[tail.id, head.id].append(edge)
            ends[tail.id, head.id] = tail, head
        for key, (tail, head) in ends.items():
            yield Arrow(tail, head, tuple(edges[key]))

    def _flows(self, owner: dict[str, Node]) -> Iterator[tuple[Node, Node, Edge]]:
        for key, head in owner.items():
            for edge in self.by_label[key].edges:
                parent = self.by_label.get(edge.parent)
                tail = owner.get(node_id(parent)) if parent else None
                if tail is not None and tail is not head:
                    yield tail, head, edge

    def _node(self, key: str, operations: tuple[Operation, ...], module: tuple[str, ...]) -> Node:
        if module:
            return Node(key, operations, module[:-1], module[-1])
        return Node(key, operations, self._boxes_around(operations[0]))

    def _collapsed_into(self, operation: Operation, depth: int | None) -> tuple[str, ...]:
        calls = self.calls[node_id(operation)]
        if depth is None or len(calls) < depth or self.sizes[calls[depth - 1]] == 1:
            return ()
        return calls[:depth]

    def _boxes_around(self, operation: Operation) -> tuple[str, ...]:
        """Leave out the box of a module that is nothing but one operation: the node's own shape says it."""
        calls = self.calls[node_id(operation)]
        return calls[:-1] if calls and calls[-1] in self.bottom else calls

    def _calls_around(self) -> dict[str, tuple[str, ...]]:
        around = {node_id(op): op.containing_module_origin_nested for op in self.operations}
        for source in self.operations:
            if (source.is_buffer_layer or source.is_constant) and not around[node_id(source)]:
                around[node_id(source)] = self._calls_of_children(source, around)
        return around

    def _calls_of_children(self, source: Operation, around: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
        children = (self.by_label[label] for label in source.child_layers if label in self.by_label)
        return _common([around[node_id(child)] for child in children])

    def _calls_within(self) -> Counter[str]:
        """Count the function calls in each module call; buffers and constants are none."""
        seen: set[tuple[str, int | str]] = set()
        for operation in self.operations:
            if operation.is_buffer_layer or operation.is_constant:
                continue
            number = operation.call_id if operation.call_id >= 0 else operation.layer_label_w_pass
            seen.update((call, number) for call in self.calls[node_id(operation)])
        return Counter(call for call, _ in seen)

    def _calls_of_one_operation(self) -> set[str]:
        ends = (op for op in self.operations if op.is_bottom_level_submodule_output)
        innermost = (self.calls[node_id(op)][-1:] for op in ends)
        return {call for calls in innermost for call in calls if self.sizes[call] == 1}


def _labels(operations: tuple[Operation, ...]) -> dict[str, Operation]:
    """Find operations by label with pass, by label, and by node id."""
    found: dict[str, Operation] = {}
    for operation in operations:
        for key in (operation.layer_label, operation.layer_label_w_pass, node_id(operation)):
            found.setdefault(key, operation)
    return found


def _common(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the start that all of `paths` share."""
    if not paths:
        return ()
    shared = zip(*paths, strict=False)
    length = next((i for i, names in enumerate(shared) if len(set(names)) > 1), min(map(len, paths)))
    return paths[0][:length]
