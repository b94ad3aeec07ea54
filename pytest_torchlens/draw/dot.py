"""The picture in Graphviz's language."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field

from graphviz import Digraph
from graphviz import escape
from graphviz import nohtml

from pytest_torchlens.draw.legend import legend
from pytest_torchlens.draw.look import Look
from pytest_torchlens.draw.metric import metric
from pytest_torchlens.draw.options import DrawOptions
from pytest_torchlens.draw.options import check_draws
from pytest_torchlens.draw.picture import Node
from pytest_torchlens.draw.picture import Picture
from pytest_torchlens.draw.picture import compose
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.draw.text import counted
from pytest_torchlens.draw.text import module_id
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shortened
from pytest_torchlens.draw.words import Words
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import Operation

Link = Callable[[Operation], str]

_LONGEST_HINT = 200
_CALLER = 4
"""Frames from here to the code that asked a history for a drawing."""


def dot_source(
    history: HistoryRecord,
    options: DrawOptions | None = None,
    *,
    link: Link | None = None,
    gradients: frozenset[str] = frozenset(),
    measured: Measurements | None = None,
) -> str:
    """Return the drawing of a forward pass as DOT.

    Parameters
    ----------
    history
        The forward pass.
    options
        What is shown, and how.
    link
        Gives the URL that an operation's node leads to.
    gradients
        Labels of the operations whose tensors a backward pass reached, drawn if the options ask for gradients.
    measured
        What the pass cost, which ``color_by="flops"`` shows.

    Raises
    ------
    OptionError
        If the options do not fit this model.
    """
    return scene_source(Scene.of(history, measured), options or DrawOptions(), link=link, gradients=gradients)


def scene_source(
    scene: Scene,
    options: DrawOptions,
    *,
    link: Link | None = None,
    gradients: frozenset[str] = frozenset(),
    warns: bool = False,
) -> str:
    """Return the drawing of a scene as DOT.

    Parameters are those of `dot_source`; `warns` is whether operations that are left out are a warning.
    """
    check_draws(options)
    picture = compose(scene, options, gradients if options.gradients else frozenset())
    if warns and picture.num_left_out:
        warnings.warn(_left_out(picture), stacklevel=_CALLER)
    options = picture.options
    addresses = {module.address for module in scene.history.modules}
    numbers = metric(options.color_by, scene.operations, addresses, scene.measured)
    look = Look(options, Words(scene, options), picture, numbers)
    return _Writer(picture, look, link).write(has_marks=bool(scene.marks))


def _left_out(picture: Picture) -> str:
    return (
        f"the last {counted(picture.num_left_out, 'operation')} are not drawn: max_nodes is "
        f"{picture.options.max_nodes}, and no more can be drawn as one node; raise it, or draw a part (focus)"
    )


@dataclass
class _Box:
    """A module call's box: its nodes, and the boxes inside it."""

    nodes: list[Node] = field(default_factory=list)
    boxes: dict[str, _Box] = field(default_factory=dict)


class _Writer:
    def __init__(self, picture: Picture, look: Look, link: Link | None) -> None:
        self.picture = picture
        self.look = look
        self.link = link

    def write(self, *, has_marks: bool) -> str:
        look = self.look
        graph = Digraph("model", graph_attr=look.graph(), node_attr=look.nodes(), edge_attr=look.arrows())
        graph.attr(label=look.title(self.picture))
        self._write_box(graph, _nested(self.picture.nodes))
        for arrow in self.picture.arrows:
            graph.edge(arrow.tail.id, arrow.head.id, **look.arrow(arrow))
        for tail, head in self.picture.gradients:
            graph.edge(tail.id, head.id, **look.gradient())
        if look.options.legend:
            table = legend(look.theme, self.picture, compares=has_marks)
            graph.node("legend", id="legend", shape="plain", tooltip="legend", label=table)
        return str(graph.source)

    def _write_box(self, graph: Digraph, box: _Box) -> None:
        for node in box.nodes:
            self._write_node(graph, node)
        for call, inner in box.boxes.items():
            with graph.subgraph(name=f"cluster_{module_id(call)}") as cluster:
                run = self.picture.runs.get(call, ())
                cluster.attr(id=module_id(call), tooltip=_attribute(call), **self.look.box(call, run))
                self._write_box(cluster, inner)

    def _write_node(self, graph: Digraph, node: Node) -> None:
        target = {"URL": _attribute(self.link(node.operations[-1]))} if self.link else {}
        hint = (shortened(printable(line), _LONGEST_HINT) for line in self.look.words.hint(node))
        graph.node(node.id, id=node.id, tooltip=_attribute(*hint), **self.look.node(node), **target)


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
