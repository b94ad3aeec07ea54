"""A page with the curves and the videos of one recording; it opens from a disk and asks for nothing else."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_torchlens.recorder.worker.curves import HEIGHT
from pytest_torchlens.recorder.worker.curves import WIDTH
from pytest_torchlens.recorder.worker.curves import Curve
from pytest_torchlens.recorder.worker.curves import Points
from pytest_torchlens.recorder.worker.curves import curves
from pytest_torchlens.recorder.worker.curves import read_points
from pytest_torchlens.recorder.worker.files import read_reports
from pytest_torchlens.recorder.worker.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 3_400_000
"""Of videos that are within the page; further ones are links."""

TYPES = {".mp4": "video/mp4", ".webp": "image/webp"}


@dataclass(frozen=True)
class Film:
    """A video: within the page, or a link to its file."""

    name: str
    type: str
    data: str


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
    replace_file(folder / "index.html", text)


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


def _card(item: dict[str, Any], reports: list[dict[str, Any]], points: dict[str, Points], films: _Films) -> Card:
    same = [other for report in reports for other in report["items"] if other["item"] == item["item"]]
    names = [name for other in same for name in other["files"]]
    found = [film for name in names if (film := films.film(name))]
    own = points.get(item["name"], Points())
    frames, dropped = (sum(other[what] for other in same) for what in ("frames", "dropped"))
    return Card(item["name"], item["kind"], frames, dropped, own.nans, curves(item["kind"], own), found)


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
