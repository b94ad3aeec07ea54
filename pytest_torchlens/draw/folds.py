"""Divides a forward pass into folds: one small graph for each module call, in which each call inside is one node.

A page shows the fold of the whole model and puts the fold of a module in the place of its node.  Where a call holds too
many nodes, those in a row are joined to sections, which are folds too.  So every operation is drawn exactly once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from graphviz import Digraph

from pytest_torchlens.draw.captions import Words
from pytest_torchlens.draw.dot import Look
from pytest_torchlens.draw.dot import stacked_label
from pytest_torchlens.draw.draw_options import DrawOptions
from pytest_torchlens.draw.picture import Arrow
from pytest_torchlens.draw.picture import Composer
from pytest_torchlens.draw.picture import DrawnNode
from pytest_torchlens.draw.picture import Picture
from pytest_torchlens.draw.scene import Flow
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.draw.text import id_part
from pytest_torchlens.draw.text import layer_id
from pytest_torchlens.draw.text import module_id
from pytest_torchlens.draw.text import node_id
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shorten
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import count_text
from pytest_torchlens.records import pass_of

MOST_NODES: Final = 60
"""Nodes of one fold; a call with more is divided into sections."""

_SECTION: Final = 40
"""Nodes of a section, about."""

_MANY_ARROWS: Final = 250
"""Above this number of arrows, straight arrows and fewer rounds of improvement keep the layout below a second."""

_QUICK: Final = {"splines": "line", "nslimit": "1", "nslimit1": "1", "mclimit": "0.2"}


@dataclass(frozen=True)
class Fold:
    """The graph inside a module call, inside a section, or of the whole model."""

    id: str
    """Id of the node that it unfolds; ``""`` for the whole model."""
    title: tuple[str, ...]
    """Lines of its box's title."""
    dot: str
    """Its graph; nodes named ``in-...`` and ``out-...`` are the tensors that it takes from and gives to the outside."""
    carried: dict[tuple[str, str], tuple[str, ...]]
    """By the ids of an arrow's ends: ids of the operations whose tensors go along it."""


def folds(history: HistoryRecord, options: DrawOptions | None = None) -> list[Fold]:
    """Return the folds of a forward pass, each before those inside it; the first is that of the whole model."""
    return list(_Folder(Scene.of(history), options or DrawOptions()).folds())


@dataclass(frozen=True)
class _Group:
    """The operations of a fold, by the node that shows them."""

    node: DrawnNode | None
    depth: int
    """Number of module calls around its operations that are open."""
    parts: dict[str, list[Operation]]


class _Folder(Composer):
    """Composes the graph of each fold, with the arrows and texts of any other picture."""

    def __init__(self, scene: Scene, options: DrawOptions) -> None:
        super().__init__(scene, options)
        self.words = Words(scene, options)
        self.look = Look(options, self.words, Picture((), (), options))
        self.into: dict[str, list[Flow]] = defaultdict(list)
        self.out_of: dict[str, list[Flow]] = defaultdict(list)
        for flow in scene.flows:
            self.into[flow.head].append(flow)
            self.out_of[flow.tail].append(flow)

    def folds(self) -> Iterator[Fold]:
        """Yield each fold before those inside it."""
        waiting = [_Group(None, 0, self._parts(list(self.scene.operations), 0))]
        while waiting:
            group = waiting.pop()
            inside = list(self._inside(group))
            yield self._fold(group, [node for node, _ in inside])
            waiting += [inner for _, inner in reversed(inside) if inner is not None]

    def _parts(self, operations: list[Operation], depth: int) -> dict[str, list[Operation]]:
        """Return the operations of each node, where the first `depth` calls around them are open."""
        parts: dict[str, list[Operation]] = defaultdict(list)
        for op in operations:
            parts[self._key(op, depth)].append(op)
        return parts

    def _key(self, op: Operation, depth: int) -> str:
        call = self._call_at(op, depth)
        return module_id(self._call_label(call)) if call else self._op_id(op)

    def _call_at(self, op: Operation, depth: int) -> str:
        path = self.around.paths[op.label]
        return path[depth] if len(path) > depth and self.around.sizes[path[depth]] > 1 else ""

    def _op_id(self, op: Operation) -> str:
        return layer_id(op) if self.options.is_rolled else node_id(op)

    def _inside(self, group: _Group) -> Iterator[tuple[DrawnNode, _Group | None]]:
        """Yield each node of a fold, and the fold that it opens."""
        if len(group.parts) > MOST_NODES:
            yield from (self._section(rows, group.depth) for rows in _in_sections(list(group.parts.items())))
            return
        for key, operations in group.parts.items():
            call = self._call_at(operations[0], group.depth)
            node = self._fold_node(key, operations, group.depth, self._call_label(call) if call else None)
            inner = _Group(node, group.depth + 1, self._parts(operations, group.depth + 1)) if call else None
            yield node, inner

    def _fold_node(self, key: str, operations: list[Operation], depth: int, call: str | None) -> DrawnNode:
        path = self.around.paths[operations[0].label]
        passes = len({self._pass_at(op, depth) for op in operations}) if self.options.is_rolled else 1
        node = DrawnNode(key, tuple(operations), path[:depth], call, passes)
        return self._with_edits(node, tuple(operations[-1:] if call else operations))

    def _pass_at(self, op: Operation, depth: int) -> str | int:
        """Return what tells apart the passes of a rolled node: its calls, or the passes of one layer."""
        return self._call_at(op, depth) or op.pass_num

    def _section(self, rows: list[tuple[str, list[Operation]]], depth: int) -> tuple[DrawnNode, _Group]:
        operations = [op for _, part in rows for op in part]
        first, last = operations[0].label, operations[-1].label
        key = f"part-{id_part(first)}-{id_part(last)}"
        node = DrawnNode(key, tuple(operations), (), f"{first} … {last}", is_section=True)
        return node, _Group(node, depth, dict(rows))

    def _fold(self, group: _Group, nodes: list[DrawnNode]) -> Fold:
        owner = self._owners(nodes)
        arrows, carried = self._arrows_inside(owner)
        look = self.look
        graph = Digraph("fold", graph_attr=self._frame(arrows), node_attr=look.nodes(), edge_attr=look.arrows())
        for node in nodes:
            graph.node(node.id, id=node.id, **look.node(node))
        for arrow in arrows:
            graph.edge(arrow.tail.id, arrow.head.id, id=f"{arrow.tail.id} {arrow.head.id}", **look.arrow(arrow))
        carried |= _add_ports(graph, "in", self._taken(owner)) | _add_ports(graph, "out", self._given(owner))
        key, title = (group.node.id, tuple(self._title(group.node))) if group.node else ("", ())
        return Fold(key, title, str(graph.source), carried)

    def _frame(self, arrows: list[Arrow]) -> dict[str, str]:
        plain = {"rankdir": self.look.graph()["rankdir"], "ranksep": "0.35", "pad": "0.1"}
        return plain | (_QUICK if len(arrows) > _MANY_ARROWS else {})

    def _title(self, node: DrawnNode) -> list[str]:
        if node.is_section:
            return [node.module or "", count_text(len(node.operations), "operation")]
        return [shorten(printable(line)) for line in self.words.of_box(node.module or "", ())]

    def _arrows_inside(self, owner: dict[str, DrawnNode]) -> tuple[list[Arrow], dict[tuple[str, str], tuple[str, ...]]]:
        """Return the arrows between the nodes of a fold, and what each carries."""
        joined: dict[tuple[object, ...], list[tuple[Flow, str, str]]] = defaultdict(list)
        carried: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for flow in (flow for label in owner for flow in self.into[label] if flow.tail in owner):
            tail, head = owner[flow.tail], owner[flow.head]
            if self._is_inside(tail, head, flow.tail, flow.head):
                continue
            carried[tail.id, head.id][self._op_id(self.by_label[flow.tail])] = None
            key = (tail.id, head.id, flow.argument, flow.through_write, flow.mark, flow.edit)
            joined[key].append((flow, flow.tail, flow.head))
        arrows = list(self._by_ends(self._arrow(owner, flows) for flows in joined.values()))
        return arrows, {ends: tuple(ids) for ends, ids in carried.items()}

    def _taken(self, owner: dict[str, DrawnNode]) -> Iterator[tuple[str, str, str]]:
        """Yield id and label of each tensor that a fold takes from the outside, and the id of a node that reads it."""
        for label, node in owner.items():
            for flow in self.into[label]:
                if flow.tail not in owner:
                    yield *self._tensor(flow.tail), node.id

    def _given(self, owner: dict[str, DrawnNode]) -> Iterator[tuple[str, str, str]]:
        """Yield id and label of each tensor that the outside reads, and the id of the node that makes it."""
        for label, node in owner.items():
            if any(flow.head not in owner for flow in self.out_of[label]):
                yield *self._tensor(label), node.id

    def _tensor(self, label: str) -> tuple[str, str]:
        op = self.by_label[label]
        return self._op_id(op), op.layer_label if self.options.is_rolled else op.label

    def _pass_of(self, node: DrawnNode, label: str) -> int:
        if node.is_section:
            return 1
        if node.module is None:
            return self.by_label[label].pass_num
        calls = (call for call in self.around.paths[label] if self._call_label(call) == node.module)
        return pass_of(next(calls), self.addresses)


def _in_sections(rows: list[tuple[str, list[Operation]]]) -> Iterator[list[tuple[str, list[Operation]]]]:
    """Divide rows into sections of equal length, of which there are at most as many as a fold has nodes."""
    count = min(-(-len(rows) // _SECTION), MOST_NODES)
    for place in range(count):
        yield rows[place * len(rows) // count : (place + 1) * len(rows) // count]


def _add_ports(
    graph: Digraph, side: str, crossing: Iterable[tuple[str, str, str]]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Add a small node at the border for each tensor that crosses it; return what their arrows carry."""
    ports: dict[str, str] = {}
    arrows: dict[tuple[str, str], tuple[str, ...]] = {}
    for tensor, label, node in crossing:
        ports[f"{side}-{tensor}"] = label
        arrows[(f"in-{tensor}", node) if side == "in" else (node, f"out-{tensor}")] = (tensor,)
    with graph.subgraph(graph_attr={"rank": "source" if side == "in" else "sink"}) as row:
        for key, label in ports.items():
            look = {"class": f"port {side}", "shape": "plaintext", "fontsize": "9", "margin": "0.02", "height": "0.2"}
            row.node(key, id=key, label=stacked_label([label]), **look)
    for tail, head in arrows:
        graph.edge(tail, head, id=f"{tail} {head}", **{"class": "port"})
    return arrows
