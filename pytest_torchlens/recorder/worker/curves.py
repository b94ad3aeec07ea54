"""Columns of the table as lines, small enough for a page whatever the number of steps."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH, HEIGHT = 300, 80
MOST_POINTS = 600
SPAN = 100.0
"""From so many times the smallest value to the largest on, the scale is logarithmic."""

Point = tuple[int, dict[str, float]]


@dataclass(frozen=True)
class Curve:
    """One line, ready to be drawn.

    Attributes
    ----------
    title : str
        What it is.
    line, band : str
        Path of the line in SVG's terms, and of the area around it; empty where there is none.
    low, high : float
        Ends of the vertical axis.
    first, last : int
        Ends of the horizontal one: steps.
    now : float
        The last value.
    """

    title: str
    line: str
    band: str
    low: float
    high: float
    first: int
    last: int
    now: float


class Points:
    """Rows of one item, evenly thinned out to a number that does not grow."""

    def __init__(self) -> None:
        self.all: list[Point] = []
        self.nans = 0
        self._every = 1
        self._seen = 0

    def add(self, step: int, values: dict[str, float]) -> None:
        """Take in a row."""
        self.nans += int(values["nans"])
        if self._seen % self._every == 0:
            self.all.append((step, values))
        self._seen += 1
        if len(self.all) > MOST_POINTS:
            self.all = self.all[::2]
            self._every *= 2


def read_points(path: Path) -> dict[str, Points]:
    """Return the rows of a table by item."""
    points: dict[str, Points] = defaultdict(Points)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name, step = row.pop("item"), int(row["step"])
            del row["kind"]
            points[name].add(step, {column: float(text) if text else math.nan for column, text in row.items()})
    return points


def curves(kind: str, points: Points) -> list[Curve]:
    """Return the curves of an item: those of its columns that tell something of its kind."""
    if kind == "scalar":
        return _existing([_curve("value", points.all, "mean")])
    found = [_curve("mean ± std", points.all, "mean", "std"), _curve("norm", points.all, "norm")]
    for title, column in (
        ("update over weight", "ratio"),
        ("share of zeros", "zeros"),
        ("dead units", "dead"),
        ("not finite", "nans"),
    ):
        if any(values[column] > 0 for _, values in points.all):
            found.append(_curve(title, points.all, column))
    return _existing(found)


def _existing(found: Sequence[Curve | None]) -> list[Curve]:
    return [curve for curve in found if curve]


def _curve(title: str, points: Sequence[Point], column: str, around: str = "") -> Curve | None:
    known = [
        (step, values[column], values[around] if around else 0.0)
        for step, values in points
        if math.isfinite(values[column]) and math.isfinite(values.get(around, 0.0))
    ]
    if not known:
        return None
    known = known * 2 if len(known) == 1 else known  # a line across: of a single point nothing would be seen
    lows, highs = [value - more for _, value, more in known], [value + more for _, value, more in known]
    low, high = min(lows), max(highs)
    is_log = not around and low > 0 and high / low > SPAN
    steps = [step for step, _, _ in known]
    places = steps if steps[-1] > steps[0] else range(len(steps))

    def path(values: Sequence[float], start: str = "M", *, backwards: bool = False) -> str:
        corners = [
            f"{_share(at, places[0], places[-1]) * WIDTH:.1f} {HEIGHT - _height(value, low, high, is_log) * HEIGHT:.1f}"
            for at, value in zip(places, values, strict=True)
        ]
        return start + " L".join(reversed(corners) if backwards else corners)

    band = path(highs) + path(lows, " L", backwards=True) + " Z" if around else ""
    line = path([value for _, value, _ in known])
    title = f"{title}, logarithmic" if is_log else title
    return Curve(title, line, band, low, high, steps[0], steps[-1], known[-1][1])


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _height(value: float, low: float, high: float, is_log: bool) -> float:
    return _share(math.log(value), math.log(low), math.log(high)) if is_log else _share(value, low, high)
