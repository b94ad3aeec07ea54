"""The picture in Graphviz's language."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

from graphviz import Digraph
from graphviz import escape
from graphviz import nohtml

from pytest_torchlens.draw import look
from pytest_torchlens.draw.picture import Node
from pytest_torchlens.draw.picture import compose
from pytest_torchlens.draw.text import address_of
from pytest_torchlens.draw.text import module_id
from pytest_torchlens.draw.text import printable
from pytest_torchlens.records import ModuleRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.records import HistoryRecord
    from pytest_torchlens.records import Operation

# One name and no list: only then does graphviz-pure know how wide the text is.
_FONT = "Helvetica"
_GRAPH = {
    "rankdir": "BT",
    "labelloc": "t",
    "labeljust": "l",
    "fontname": _FONT,
    "ranksep": "0.35",
    "pad": "0.2",
}
_NODE = {"fontname": _FONT, "fontsize": "12", "color": "#555555", "margin": "0.12,0.06"}
_EDGE = {"fontname": _FONT, "fontsize": "10", "color": "#555555", "arrowsize": "0.7"}
# With data flowing upward Graphviz turns a box's label location around: "b" is its upper edge.
_BOX = {"labelloc": "b", "labeljust": "l", "color": "#888888", "style": "rounded", "fontsize": "12"}


def dot_source(
    history: HistoryRecord,
    *,
    nesting_depth: int | None = None,
    max_nodes: int = 600,
    link: Callable[[Operation], str] | None = None,
) -> str:
    """Return the drawing of a forward pass as DOT.

    Parameters
    ----------
    history
        The forward pass.
    nesting_depth
        Level from which on a module is drawn as one node: 1 draws the model's direct submodules.
        None draws every operation.
    max_nodes
        Above this number of nodes modules are collapsed, the innermost first, until the rest fits; the title
        says so.
    link
        Gives the URL that an operation's node leads to.

    Raises
    ------
    ValueError
        If `nesting_depth` or `max_nodes` is below 1.
    """
    for name, value in (("nesting_depth", nesting_depth), ("max_nodes", max_nodes)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; the smallest picture has {name}=1")
    return _Writer(history, link).write(nesting_depth, max_nodes)


@dataclass
class _Box:
    """A module call's box: its nodes, and the boxes inside it."""

    nodes: list[Node] = field(default_factory=list)
    boxes: dict[str, _Box] = field(default_factory=dict)


class _Writer:
    def __init__(self, history: HistoryRecord, link: Callable[[Operation], str] | None) -> None:
        self.history = history
        self.link = link
        self.modules = {module.address: module for module in history.modules}

    def write(self, nesting_depth: int | None, max_nodes: int) -> str:
        picture = compose(self.history, nesting_depth, max_nodes)
        graph = Digraph("model", graph_attr=_GRAPH, node_attr=_NODE, edge_attr=_EDGE)
        graph.attr(label=look.title(self.history, picture))
        self._write_box(graph, _nested(picture.nodes))
        for arrow in picture.arrows:
            label = look.arrow_label(arrow).replace("&", "&amp;")
            graph.edge(arrow.tail.id, arrow.head.id, label=escape(label) if label else None)
        return str(graph.source)

    def _write_box(self, graph: Digraph, box: _Box) -> None:
        for node in box.nodes:
            self._write_node(graph, node)
        for call, inner in box.boxes.items():
            with graph.subgraph(name=f"cluster_{module_id(call)}") as cluster:
                module = self._module(call)
                label = look.box_label(call, module.module_type, module.num_passes)
                cluster.attr(label=label, id=module_id(call), tooltip=_attribute(call), **_BOX)
                self._write_box(cluster, inner)

    def _write_node(self, graph: Digraph, node: Node) -> None:
        module_type = self._module(node.module).module_type if node.module else ""
        target = {"URL": _attribute(self.link(node.operations[-1]))} if self.link else {}
        graph.node(
            node.id,
            id=node.id,
            label=look.node_label(node, module_type),
            tooltip=_attribute(*look.tooltip(node)),
            **look.node_style(node),
            **target,
        )

    def _module(self, call: str) -> ModuleRecord:
        address = address_of(call, self.modules)
        return self.modules.get(address) or ModuleRecord(address=address, module_type="")


def _nested(nodes: tuple[Node, ...]) -> _Box:
    root = _Box()
    for node in nodes:
        box = root
        for call in node.boxes:
            box = box.boxes.setdefault(call, _Box())
        box.nodes.append(node)
    return root


def _attribute(*lines: str) -> str:
    """Escape for attributes in which Graphviz resolves backslashes twice and entities once."""
    escaped = (escape(printable(line).replace("&", "&amp;").replace("\\", r"\\")) for line in lines)
    text: str = nohtml(r"\n".join(escaped))
    return text
