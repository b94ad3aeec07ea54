"""Turns folds into the shapes that a page draws: boxes, ovals, curves and words, with their places in pixels."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any
from typing import Final

from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import Fold
from pytest_torchlens.draw import folds
from pytest_torchlens.draw import render
from pytest_torchlens.records import HistoryRecord

_SVG: Final = "{http://www.w3.org/2000/svg}"

_POINT: Final = 4 / 3
"""CSS pixels per Graphviz point."""

_NUMBER: Final = re.compile(r"-?[0-9.]+")

_AT_ONCE: Final = 100
"""Folds that one process lays out: starting one takes longer than most layouts."""


def fold_shapes(history: HistoryRecord, options: DrawOptions | None = None) -> list[dict[str, Any]]:
    """Return the shapes of each fold of a forward pass, as `graph.js` reads them.

    Raises
    ------
    DrawingUnavailable
        If Graphviz is missing or fails.
    """
    found = folds(history, options)
    svgs: list[bytes] = []
    for start in range(0, len(found), _AT_ONCE):
        svgs += render("\n".join(fold.dot for fold in found[start : start + _AT_ONCE])).split(b"<?xml")[1:]
    return [_shapes(fold, ET.fromstring(b"<?xml" + svg)) for fold, svg in zip(found, svgs, strict=True)]  # noqa: S314 - Graphviz's


def _shapes(fold: Fold, svg: ET.Element) -> dict[str, Any]:
    (sheet,) = svg.findall(f"{_SVG}g")
    x, y = _numbers(sheet.attrib["transform"].rpartition("translate")[2])
    width, height = _numbers(svg.attrib["viewBox"])[2:]
    groups = [(group.get("class", "").split(), group) for group in sheet.findall(f"{_SVG}g")]
    at = _Places(x, y)
    return {
        "id": fold.id,
        "title": fold.title,
        "size": [_pixels(width), _pixels(height)],
        "nodes": [at.node(classes[1:], group) for classes, group in groups if classes[0] == "node"],
        "edges": [at.edge(classes[1:], group, fold) for classes, group in groups if classes[0] == "edge"],
    }


class _Places:
    """Reads Graphviz's elements, whose places are relative to a point of the drawing."""

    def __init__(self, x: float, y: float) -> None:
        self.x = x
        self.y = y

    def node(self, classes: list[str], group: ET.Element) -> list[Any]:
        """Return id, classes, centre and size, kind of outline, and lines of a node."""
        shapes = [element for element in group.iter() if element.tag in (f"{_SVG}ellipse", f"{_SVG}polygon")]
        boxes = [self._box(shape) for shape in shapes] or [self._box_of_text(group)]
        box = max(boxes, key=lambda one: one[2])
        first = shapes[0] if shapes else group
        kind = "oval" if first.tag == f"{_SVG}ellipse" else "box" if shapes else "none"
        outline = {"kind": kind, "width": first.get("stroke-width", ""), "dash": first.get("stroke-dasharray", "")}
        lines = [[text, y, bold] for _, y, text, bold in self._words(group)]
        return [group.get("id"), " ".join(classes), box, {key: value for key, value in outline.items() if value}, lines]

    def edge(self, classes: list[str], group: ET.Element, fold: Fold) -> list[Any]:
        """Return the ends of an arrow, its classes, curve, head, words, what it carries, and its dashes."""
        tail, head = group.get("id", " ").split(" ")
        path, point = group.find(f"{_SVG}path"), group.find(f"{_SVG}polygon")
        curve = self._points(path.attrib["d"]) if path is not None else []
        tip = self._points(point.attrib["points"]) if point is not None else []
        words = [[text, x, y] for x, y, text, _ in self._words(group)]
        dash = path.get("stroke-dasharray", "") if path is not None else ""
        return [tail, head, " ".join(classes), curve, tip, words, fold.carried.get((tail, head), ()), dash]

    def _box(self, shape: ET.Element) -> list[float]:
        """Return centre and size."""
        if shape.tag == f"{_SVG}ellipse":
            cx, cy, rx, ry = (float(shape.attrib[name]) for name in ("cx", "cy", "rx", "ry"))
            return [*self._place(cx, cy), _pixels(2 * rx), _pixels(2 * ry)]
        numbers = _numbers(shape.attrib["points"])
        xs, ys = numbers[::2], numbers[1::2]
        centre = self._place((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2)
        return [*centre, _pixels(max(xs) - min(xs)), _pixels(max(ys) - min(ys))]

    def _box_of_text(self, group: ET.Element) -> list[float]:
        """Return the place of a node that has no outline, whose text is about half as wide as it is high."""
        x, y, text, _ = next(self._words(group))
        width, height = 6.5 * len(text), 14.0
        return [round(x + width / 2, 1), round(y - height / 4, 1), width, height]

    def _words(self, group: ET.Element) -> Iterator[tuple[float, float, str, int]]:
        for text in group.iter(f"{_SVG}text"):
            x, y = self._place(float(text.attrib["x"]), float(text.attrib["y"]))
            yield x, y, text.text or "", int(text.get("font-weight") == "bold")

    def _points(self, numbers: str) -> list[float]:
        found = _numbers(numbers)
        return [number for x, y in zip(found[::2], found[1::2], strict=True) for number in self._place(x, y)]

    def _place(self, x: float, y: float) -> list[float]:
        return [_pixels(x + self.x), _pixels(y + self.y)]


def _numbers(text: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(text)]


def _pixels(points: float) -> float:
    return round(points * _POINT, 1)
