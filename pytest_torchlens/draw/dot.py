"""Writes a picture as DOT, Graphviz's language.

`_DotWriter` writes nodes, arrows and boxes; `Look` chooses their shapes and colours by the paper's visual code.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from html import escape as escape_html
from typing import TYPE_CHECKING

from graphviz import Digraph
from graphviz import escape
from graphviz import nohtml

from pytest_torchlens.draw.captions import Words
from pytest_torchlens.draw.captions import legend
from pytest_torchlens.draw.draw_options import DrawOptions
from pytest_torchlens.draw.draw_options import check_draws
from pytest_torchlens.draw.metric import Metric
from pytest_torchlens.draw.metric import Scale
from pytest_torchlens.draw.metric import metric
from pytest_torchlens.draw.picture import DrawnNode
from pytest_torchlens.draw.picture import Picture
from pytest_torchlens.draw.picture import compose
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.draw.text import module_id
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shorten
from pytest_torchlens.draw.theme import edit_line
from pytest_torchlens.draw.theme import ink_on
from pytest_torchlens.draw.theme import mix
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import Operation
from pytest_torchlens.records import count_text

if TYPE_CHECKING:
    from pytest_torchlens.draw.picture import Arrow


Attributes = dict[str, str]
_SMALL = 10
_LONGEST_LABEL = 80
_RANKDIR = {"up": "BT", "down": "TB", "right": "LR", "left": "RL"}
_STEPS = 24
"""Cells of a colour bar."""
Link = Callable[[Operation], str]
_LONGEST_HINT = 200
_CALLER = 5
"""Frames from here to the code that called the history's draw method."""


def dot_source(
    history: HistoryRecord,
    options: DrawOptions | None = None,
    *,
    link: Link | None = None,
    gradients: frozenset[str] = frozenset(),
    measurements: Measurements | None = None,
) -> str:
    """Return the drawing of a forward pass as DOT.

    Parameters
    ----------
    history
        The forward pass.
    options
        What the drawing shows, and how.
    link
        Returns the URL that an operation's node links to.
    gradients
        Labels of the operations whose tensors a backward pass reached, drawn if the options ask for gradients.
    measurements
        The costs of the pass, for ``color_by="flops"``.

    Raises
    ------
    OptionError
        If the options do not fit this model.
    """
    return scene_source(Scene.of(history, measurements), options or DrawOptions(), link=link, gradients=gradients)


def scene_source(
    scene: Scene,
    options: DrawOptions,
    *,
    link: Link | None = None,
    gradients: frozenset[str] = frozenset(),
    warns: bool = False,
) -> str:
    """Return the drawing of a scene as DOT.

    Parameters are those of `dot_source`; if `warns`, operations that are left out cause a warning.
    """
    check_draws(options)
    picture = compose(scene, options, gradients if options.gradients else frozenset())
    if warns and picture.num_left_out:
        warnings.warn(_warning_text(picture), stacklevel=_CALLER)
    options = picture.options
    addresses = {module.address for module in scene.history.modules}
    numbers = metric(options.color_by, scene.operations, addresses, scene.measurements)
    look = Look(options, Words(scene, options), picture, numbers)
    return _DotWriter(picture, look, link).write(has_marks=bool(scene.marks))


def _warning_text(picture: Picture) -> str:
    return (
        f"the last {count_text(picture.num_left_out, 'operation')} are not drawn: max_nodes is "
        f"{picture.options.max_nodes}, and no more can be drawn as one node; raise it, or draw a part (focus)"
    )


class _DotWriter:
    def __init__(self, picture: Picture, look: Look, link: Link | None) -> None:
        self.picture = picture
        self.look = look
        self.link = link

    def write(self, *, has_marks: bool) -> str:
        look = self.look
        graph = Digraph("model", graph_attr=look.graph(), node_attr=look.nodes(), edge_attr=look.arrows())
        graph.attr(label=look.title(self.picture))
        self._write_box(graph, _box_tree(self.picture.nodes))
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

    def _write_node(self, graph: Digraph, node: DrawnNode) -> None:
        target = {"URL": _attribute(self.link(node.operations[-1]))} if self.link else {}
        hint = (shorten(printable(line), _LONGEST_HINT) for line in self.look.words.hint(node))
        graph.node(node.id, id=node.id, tooltip=_attribute(*hint), **self.look.node(node), **target)


@dataclass
class _Box:
    """A module call's box: its nodes, and the boxes inside it."""

    nodes: list[DrawnNode] = field(default_factory=list)
    boxes: dict[str, _Box] = field(default_factory=dict)


def _box_tree(nodes: tuple[DrawnNode, ...]) -> _Box:
    root = _Box()
    for node in nodes:
        box = root
        for call in node.boxes:
            box = box.boxes.setdefault(call, _Box())
        box.nodes.append(node)
    return root


def _attribute(*lines: str) -> str:
    """Escape lines for attributes in which Graphviz resolves backslashes twice and entities once."""
    escaped = (escape(printable(line).replace("&", "&amp;").replace("\\", r"\\")) for line in lines)
    text: str = nohtml(r"\n".join(escaped))
    return text


class Look:
    """Chooses the attributes of a picture's parts."""

    def __init__(self, options: DrawOptions, words: Words, picture: Picture, metric: Metric | None = None) -> None:
        self.options = options
        self.theme = options.colours
        self.words = words
        self.metric = metric
        values = {node.id: metric.of(node.operations) for node in picture.nodes} if metric else {}
        self.values = {key: value for key, value in values.items() if value is not None}
        self.scale = Scale.over(self.values.values())

    def graph(self) -> Attributes:
        """Return the attributes of the whole graph."""
        return {
            "rankdir": _RANKDIR[self.options.direction],
            "labelloc": "t",
            "labeljust": "l",
            "fontname": self.theme.font,
            "fontcolor": self.theme.text,
            "bgcolor": self.theme.background,
            "ranksep": "0.35",
            "pad": "0.2",
        }

    def nodes(self) -> Attributes:
        """Return the attributes that all nodes share."""
        return {
            "fontname": self.theme.font,
            "fontsize": "12",
            "fontcolor": self.theme.text,
            "color": self.theme.line,
            "margin": "0.12,0.06",
        }

    def arrows(self) -> Attributes:
        """Return the attributes that all arrows share."""
        small = {"fontname": self.theme.font, "fontsize": str(_SMALL), "fontcolor": self.theme.text}
        return {**small, "color": self.theme.line, "arrowsize": "0.7"}

    def node(self, node: DrawnNode) -> Attributes:
        """Return the attributes that the visual code gives a node."""
        name, fill = fill_name(node), self._fill(node)
        lines = self.words.of_node(node)
        if node.id in self.values and self.metric is not None:
            lines.append(f"{self.metric.name}: {self.metric.text(self.values[node.id])}")
        attributes = {
            "shape": "box" if is_boxed(node) else "ellipse",
            "style": f"filled,{border}" if (border := _border(node)) else "filled",
            "fillcolor": fill,
            "class": " ".join(filter(None, [name, "module" if node.module else "", self.words.mark(node)])),
            "peripheries": "2" if node.module else "1",
            "label": stacked_label(lines),
        }
        if (ink := ink_on(fill, self.theme)) != self.theme.text:
            attributes["fontcolor"] = ink
        if self.metric and name in ("input", "output", "bool"):
            attributes |= {"penwidth": "3", "color": mix((getattr(self.theme, name), self.theme.text), 0.35)}
        if node.edits or any(node.changes):
            attributes |= {"penwidth": f"{_width(node):.1f}", "color": edit_line(self.theme)}
            attributes["class"] += " affected"
        if node.is_stub:
            attributes["class"] += " stub"
        return attributes

    def _fill(self, node: DrawnNode) -> str:
        if mark := self.words.mark(node):
            return str(getattr(self.theme, mark))
        if self.metric:
            return (
                self._shade(self.scale.share(self.values[node.id])) if node.id in self.values else self.theme.background
            )
        return str(getattr(self.theme, fill_name(node)))

    def _shade(self, share: float) -> str:
        return mix(self.theme.scale, share) if share == share else self.theme.background  # noqa: PLR0124 - no number

    def arrow(self, arrow: Arrow) -> Attributes:
        """Return the attributes of an arrow; its lines are in the direction of the data."""
        said = [html(self.words.of_arrow(arrow)), "<B>IF</B>" if arrow.starts_condition else "", html(arrow.in_label)]
        said.append(html(self.words.of_edit(arrow)))
        lines = [line for line in (html(arrow.out_label), *said) if line]
        if self.options.direction == "up":
            lines.reverse()
        attributes = {"label": f"<{'<BR/>'.join(lines)}>"} if lines else {}
        if arrow.through_write:
            attributes["style"] = "dotted"
        if arrow.mark:
            attributes |= {"color": mix((getattr(self.theme, arrow.mark), self.theme.text), 0.25), "penwidth": "2.5"}
            attributes |= {"style": "dashed" if arrow.mark == "removed" else "solid", "class": arrow.mark}
        if arrow.edit:
            attributes |= {"color": edit_line(self.theme), "penwidth": "3", "class": "edited"}
        return attributes

    def gradient(self) -> Attributes:
        """Return the attributes of an arrow of the backward pass."""
        return {"color": self.theme.gradient, "constraint": "false", "class": "gradient", "style": "dashed"}

    def box(self, call: str, run: tuple[str, ...]) -> Attributes:
        """Return the attributes of a module's box."""
        # With data flowing upward Graphviz turns a box's label location around: "b" is its upper edge.
        upper = "b" if self.options.direction == "up" else "t"
        # Set on every box, as boxes inside inherit it.
        width = {"penwidth": "3" if len(run) > 1 else "1"}
        head, *rest = map(html, self.words.of_box(call, run))
        left = '<BR ALIGN="LEFT"/>'
        small = "".join(f'<FONT POINT-SIZE="{_SMALL}">{line}</FONT>{left}' for line in rest if line)
        look = {"labelloc": upper, "labeljust": "l", "color": self.theme.box, "style": "rounded", "fontsize": "12"}
        return {**look, **width, "label": f"<<B>{head}</B>{left}{small}>"}

    def title(self, picture: Picture) -> str:
        """Return the title, with the colour bar if there is a metric."""
        head, *rest = map(html, self.words.title(picture))
        left = '<BR ALIGN="LEFT"/>'
        text = f'<FONT POINT-SIZE="18"><B>{head}</B></FONT>{left}' + "".join(f"{line}{left}" for line in rest)
        if self.metric is None:
            return f"<{text}>"
        bar = f'<TR><TD ALIGN="LEFT">{self._bar(self.metric)}</TD></TR>'
        return f'<<TABLE BORDER="0" CELLSPACING="0"><TR><TD ALIGN="LEFT" BALIGN="LEFT">{text}</TD></TR>{bar}</TABLE>>'

    def _bar(self, metric: Metric) -> str:
        shades = (mix(self.theme.scale, step / (_STEPS - 1)) for step in range(_STEPS))
        cells = "".join(f'<TD BGCOLOR="{shade}" WIDTH="10" HEIGHT="14"></TD>' for shade in shades)
        third = f'COLSPAN="{_STEPS // 3}"'
        aligned = zip((0.0, 0.5, 1.0), ("LEFT", "CENTER", "RIGHT"), strict=True)
        ends = "".join(
            f'<TD {third} ALIGN="{side}">{html(metric.text(self.scale.at(at)))}</TD>' for at, side in aligned
        )
        name = html(f"{metric.name}, logarithmic" if self.scale.is_logarithmic else metric.name)
        name_row = f'<TR><TD COLSPAN="{_STEPS}" ALIGN="LEFT">{name}</TD></TR>'
        return f'<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="0">{name_row}<TR>{cells}</TR><TR>{ends}</TR></TABLE>'


def fill_name(node: DrawnNode) -> str:
    """Return the name of a node's fill in the theme: that of the first rule that holds."""
    first = node.representative
    if node.edits:
        return "edited"
    if node.module is None:
        rules = {
            "output": first.is_output_layer,
            "input": first.is_input_layer,
            "bool": first.is_terminal_bool_layer or first.is_condition,
            "buffer": first.is_buffer_layer or first.is_constant,
        }
        if found := next((name for name, holds in rules.items() if holds), None):
            return found
    return "params" if any(operation.num_params_trainable for operation in node.operations) else "plain"


def _width(node: DrawnNode) -> float:
    """Return the width of the outline of a node that edits changed, or that is edited."""
    largest = max(node.changes, default=0.0)
    return max(_EDITED_WIDTH if node.edits else 1.0, 1.0 + _MOST_WIDTH * math.sqrt(min(1.0, largest)))


_EDITED_WIDTH = 3.0
_MOST_WIDTH = 4.0
"""Points that the outline of a wholly changed tensor is wider than any other."""


def is_boxed(node: DrawnNode) -> bool:
    """Whether a node represents a module."""
    return node.module is not None or node.representative.is_bottom_level_submodule_output


def _border(node: DrawnNode) -> str:
    if node.is_stub:
        return "dotted"
    return "dashed" if node.module is None and node.representative.initialized_inside_model else ""


def stacked_label(lines: list[str]) -> str:
    """Return lines as a label in Graphviz's HTML, the first one bold."""
    head, *rest = map(html, lines)
    small = "".join(f"<BR/>{line}" for line in rest)
    return f'<<B>{head}</B><FONT POINT-SIZE="{_SMALL}">{small}</FONT>>' if small else f"<<B>{head}</B>>"


def html(text: str) -> str:
    r"""Escape a text for a label: Graphviz replaces ``\N``, even in HTML, by the node's name."""
    return escape_html(shorten(printable(text), _LONGEST_LABEL)).replace("\\", r"\\")
