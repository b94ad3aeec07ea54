"""A drawing as part of a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass

from pytest_torchlens.draw.text import id_part
from pytest_torchlens.records import Operation

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_XML_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_POINT = 4 / 3
"""CSS pixels in Graphviz's unit."""


@dataclass(frozen=True)
class InlineDrawing:
    """A drawing as part of a page."""

    svg: str
    width: int
    """Pixels at natural size."""
    height: int
    ids: frozenset[str]
    """Of the nodes and boxes that can be linked to."""


def row_id(operation: Operation) -> str:
    """Return the id of an operation's row in the table of layers."""
    return "row-" + id_part(operation.label)


def inline_drawing(svg: bytes) -> InlineDrawing:
    """Return an SVG file of Graphviz's as a fragment of HTML.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        root = ET.fromstring(svg)  # noqa: S314 - our own file; a page must not break where it is damaged
        width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    except (ET.ParseError, KeyError, ValueError) as error:
        raise ValueError(f"the drawing is no SVG that Graphviz wrote: {error}") from None
    for element in list(root.iter()):
        _to_html(element)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    ids = frozenset(group.get("id", "") for group in root.iter("g"))
    return InlineDrawing(ET.tostring(root, encoding="unicode"), round(width * _POINT), round(height * _POINT), ids)


def _to_html(element: ET.Element) -> None:
    """Drop namespaces, which HTML knows by itself, and make hints of what Graphviz wrote as links' titles."""
    element.tag = element.tag.removeprefix(_SVG)
    for title in element.findall(f"{_SVG}title"):
        element.remove(title)
    hint = element.attrib.pop(f"{_XLINK}title", "").strip()
    target = element.attrib.pop(f"{_XLINK}href", None)
    element.attrib.pop(_XML_SPACE, None)
    if hint:
        title = ET.Element("title")
        title.text = hint
        element.insert(0, title)
    if target is not None:
        # The table of layers is the way for the keyboard: a graph has hundreds of links.
        element.attrib |= {"href": f"#{target.partition('#')[2]}", "tabindex": "-1"}
