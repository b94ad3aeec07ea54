"""The DOT of a drawing, read back by a parser that is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import pydot

from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import dot_source
from pytest_torchlens.records import HistoryRecord


@dataclass(frozen=True)
class Parsed:
    """Nodes by id, edges by ends, and the title."""

    nodes: dict[str, dict[str, Any]]
    boxes_of: dict[str, tuple[str, ...]]
    """Ids of the boxes around each node, outermost first."""
    boxes: dict[str, dict[str, Any]]
    edges: dict[tuple[str, str], dict[str, Any]]
    """Attributes by ends; of several edges between the same ends, the last one's."""
    arrows: list[tuple[str, str, list[str]]]
    """Ends and lines of text of each edge of the forward pass."""
    title: list[str]
    graph: dict[str, Any]

    def lines(self, node: str) -> list[str]:
        """Return the lines of a node's text."""
        return text_lines(self.nodes[node]["label"])

    def says(self, tail: str, head: str) -> list[str]:
        """Return the lines on an edge."""
        return text_lines(self.edges[tail, head].get("label", "<>"))


def parse(history: HistoryRecord, link: Any = None, reached: frozenset[str] = frozenset(), **options: Any) -> Parsed:
    """Draw and read back."""
    return read_back(dot_source(history, DrawOptions.of(**options), link=link, gradients=reached))


def read_back(dot: str) -> Parsed:
    """Return what a DOT source draws."""
    graphs = pydot.graph_from_dot_data(dot)
    assert graphs
    assert len(graphs) == 1
    graph = graphs[0]
    nodes, boxes_of, boxes = {}, {}, {}
    for around, inner in _subgraphs(graph, ()):
        if around:
            boxes[around[-1]] = _attributes(inner)
        for node in inner.get_nodes():
            if node.get_name() not in {"graph", "node", "edge"}:
                nodes[_plain(node.get_name())] = _attributes(node)
                boxes_of[_plain(node.get_name())] = around
    ends = [(_plain(e.get_source()), _plain(e.get_destination()), _attributes(e)) for e in graph.get_edges()]
    edges = {(tail, head): attributes for tail, head, attributes in ends}
    arrows = [(t, h, text_lines(said.get("label", "<>"))) for t, h, said in ends if said.get("class") != "gradient"]
    whole = _attributes(graph)
    return Parsed(nodes, boxes_of, boxes, edges, arrows, text_lines(whole["label"]), whole)


def text_lines(label: str) -> list[str]:
    """Return the lines of a label in Graphviz's HTML."""
    reader = _Lines()
    reader.feed(label[1:-1])
    reader.close()
    return [line for line in reader.lines if line]


class _Lines(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"b", "br", "font", "table", "tr", "td"}, f"a tag that is not ours: {tag}"
        if tag in {"br", "td"}:
            self.lines.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.lines[-1] += data.replace("\\\\", "\\")


def _subgraphs(graph: Any, around: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield around, graph
    for inner in graph.get_subgraphs():
        attributes = _attributes(inner)
        yield from _subgraphs(inner, (*around, attributes["id"]))


def _attributes(thing: Any) -> dict[str, Any]:
    found = dict(thing.get_attributes())
    for defaults in thing.get_node("graph") if hasattr(thing, "get_node") else ():
        found |= defaults.get_attributes()
    return {key: _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    text = str(value)
    return text[1:-1] if text[:1] == text[-1:] == '"' else text
