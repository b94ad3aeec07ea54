"""Writes ``index.html`` with the curves and videos of one recording.

The page opens from disk and loads nothing else.  Its curves have a limited number of points, however many steps there
are.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_torchlens.recorder.worker.files import read_reports
from pytest_torchlens.records import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


WIDTH, HEIGHT = 300, 80

MOST_POINTS = 600

SPAN = 100.0
"""Ratio of the largest value to the smallest above which the scale is logarithmic."""


MOST_BYTES = 3_400_000
"""Maximum size of the videos that are embedded in the page; further videos are links."""

TYPES = {".mp4": "video/mp4", ".webp": "image/webp"}

Point = tuple[int, dict[str, float]]


def write_page(folder: Path) -> None:
    """Write ``index.html`` into a folder with a recording."""
    reports = read_reports(folder)
    points = read_points(folder / "series.csv")
    films = _Films(folder)
    cards = [_card(item, reports, points, films) for item in reports[0]["items"]]
    cards.sort(key=lambda card: card.kind != "scalar")
    text = _template().render(
        title=reports[0]["title"] or folder.name,
        cards=[card for card in cards if card.curves or card.films],
        silent=[card.name for card in cards if not (card.curves or card.films)],
        ended=reports[0]["ended"],
        errors=[error for report in reports for error in report["errors"]],
        width=WIDTH,
        height=HEIGHT,
        **_assets(),
    )
    write_atomically(folder / "index.html", text)


class _Films:
    """Reads videos into the page while there is room."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._room = MOST_BYTES

    def film(self, name: str) -> Film | None:
        path = self._folder / name
        if not path.is_file():
            return None
        size = path.stat().st_size
        if size > self._room:
            return Film(name, TYPES[path.suffix], "")
        self._room -= size
        return Film(name, TYPES[path.suffix], base64.b64encode(path.read_bytes()).decode())


@dataclass(frozen=True)
class Film:
    """A video: embedded in the page, or a link to its file."""

    name: str
    type: str
    data: str


def _card(item: dict[str, Any], reports: list[dict[str, Any]], points: dict[str, Points], films: _Films) -> Card:
    same = [other for report in reports for other in report["items"] if other["item"] == item["item"]]
    names = [name for other in same for name in other["files"]]
    own_films = [film for name in names if (film := films.film(name))]
    own = points.get(item["name"], Points())
    frames, dropped = (sum(other[what] for other in same) for what in ("frames", "dropped"))
    return Card(item["name"], item["kind"], frames, dropped, own.nans, curves(item["kind"], own), own_films)


@dataclass(frozen=True)
class Card:
    """One item on the page."""

    name: str
    kind: str
    frames: int
    dropped: int
    nans: int
    curves: list[Curve]
    films: list[Film]


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_torchlens.recorder.worker"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: f"{value:.4g}"
    return environment.get_template("page.html.j2")


def _assets() -> dict[str, object]:
    folder = files("pytest_torchlens.recorder.worker") / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return {
        "style": Markup(style),  # noqa: S704 - our own file
        "script": Markup(script),  # noqa: S704 - our own file
        "policy": f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)}; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'",
    }


def _allowed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def curves(kind: str, points: Points) -> list[Curve]:
    """Return the curves of an item: of the columns that have a meaning for its kind."""
    if kind == "scalar":
        return _existing([_curve("value", points.all, "mean")])
    candidates = [_curve("mean ± std", points.all, "mean", "std"), _curve("norm", points.all, "norm")]
    for title, column in (
        ("update over weight", "ratio"),
        ("share of zeros", "zeros"),
        ("dead units", "dead"),
        ("not finite", "nans"),
    ):
        if any(values[column] > 0 for _, values in points.all):
            candidates.append(_curve(title, points.all, column))
    return _existing(candidates)


def _existing(candidates: Sequence[Curve | None]) -> list[Curve]:
    return [curve for curve in candidates if curve]


def _curve(title: str, points: Sequence[Point], column: str, around: str = "") -> Curve | None:
    finite = [
        (step, values[column], values[around] if around else 0.0)
        for step, values in points
        if math.isfinite(values[column]) and math.isfinite(values.get(around, 0.0))
    ]
    if not finite:
        return None
    finite = finite * 2 if len(finite) == 1 else finite  # a horizontal line: a single point would be invisible
    lows, highs = [value - more for _, value, more in finite], [value + more for _, value, more in finite]
    low, high = min(lows), max(highs)
    is_log = not around and low > 0 and high / low > SPAN
    steps = [step for step, _, _ in finite]
    places = steps if steps[-1] > steps[0] else range(len(steps))

    def path(values: Sequence[float], start: str = "M", *, backwards: bool = False) -> str:
        corners = [
            f"{_share(at, places[0], places[-1]) * WIDTH:.1f} {HEIGHT - _height(value, low, high, is_log) * HEIGHT:.1f}"
            for at, value in zip(places, values, strict=True)
        ]
        return start + " L".join(reversed(corners) if backwards else corners)

    band = path(highs) + path(lows, " L", backwards=True) + " Z" if around else ""
    line = path([value for _, value, _ in finite])
    title = f"{title}, logarithmic" if is_log else title
    return Curve(title, line, band, low, high, steps[0], steps[-1], finite[-1][1])


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _height(value: float, low: float, high: float, is_log: bool) -> float:
    return _share(math.log(value), math.log(low), math.log(high)) if is_log else _share(value, low, high)


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes
    ----------
    title : str
        What the line shows.
    line, band : str
        SVG paths of the line and of the area around it; the area's is empty if there is none.
    low, high : float
        Ends of the vertical axis.
    first, last : int
        Ends of the horizontal axis: steps.
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


def read_points(path: Path) -> dict[str, Points]:
    """Return the rows of a table by item."""
    points: dict[str, Points] = defaultdict(Points)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name, step = row.pop("item"), int(row["step"])
            del row["kind"]
            points[name].add(step, {column: float(text) if text else math.nan for column, text in row.items()})
    return points


class Points:
    """Rows of one item; if there are more than 600, an evenly spread part of them."""

    def __init__(self) -> None:
        self.all: list[Point] = []
        self.nans = 0
        self._every = 1
        self._num_rows = 0

    def add(self, step: int, values: dict[str, float]) -> None:
        """Add a row."""
        self.nans += int(values["nans"])
        if self._num_rows % self._every == 0:
            self.all.append((step, values))
        self._num_rows += 1
        if len(self.all) > MOST_POINTS:
            self.all = self.all[::2]
            self._every *= 2
