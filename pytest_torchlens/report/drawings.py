"""Draws models for reports.

`save_drawing` draws the whole model, and lays out the graph of its page.
`Graphs` writes one drawing per model for ``--lens-graph``.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_torchlens.draw import DrawingUnavailable
from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import render
from pytest_torchlens.draw import write_drawing
from pytest_torchlens.draw.draw_options import check_draws
from pytest_torchlens.draw.drawing import FORMATS
from pytest_torchlens.draw.drawing import LayoutStopped
from pytest_torchlens.draw.metric import MEASURED_METRICS
from pytest_torchlens.draw.metric import METRICS
from pytest_torchlens.draw.text import id_part
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Operation
from pytest_torchlens.records import from_json
from pytest_torchlens.records import nearest
from pytest_torchlens.records import to_json
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import make_folder
from pytest_torchlens.records.options import OptionError
from pytest_torchlens.records.options import choice
from pytest_torchlens.report.fold_shapes import fold_shapes
from pytest_torchlens.report.paths import drawing_path
from pytest_torchlens.report.paths import page_path
from pytest_torchlens.report.paths import views_path

FEW_NODES = 60
"""Node limit for graphs whose full layout takes too long."""


def save_drawing(report: ModelReport, folder: Path, *, max_nodes: int = 600) -> ModelReport:
    """Draw the whole model and the views of its page into the report folder.

    Parameters
    ----------
    report
        The report; without a history nothing is drawn.
    folder
        The report folder, created if missing.
    max_nodes
        In a graph with more nodes, modules are drawn as one node each.

    Returns
    -------
    ModelReport
        The report with the drawing's path in ``graph``, or with a note that says why it is missing.

    Raises
    ------
    UnwritableError
        If a file cannot be written.
    """
    if report.history is None:
        return report
    path, history = page_path(report), report.history

    def draw(max_nodes: int) -> bytes:
        options = DrawOptions(max_nodes=max_nodes)
        return render(dot_source(history, options, link=lambda operation: f"{path.name}#{row_id(operation)}"))

    try:
        try:
            svg = draw(max_nodes)
        except LayoutStopped:  # too many arrows: draw modules only
            svg = draw(min(max_nodes, FEW_NODES))
        views = make_views(history)
    except DrawingUnavailable as error:
        return replace(report, graph="", notes=(*report.notes, str(error)))
    write_atomically(folder / drawing_path(report), svg)
    write_atomically(folder / views_path(report), to_json(views))
    return replace(report, graph=str(drawing_path(report)))


@dataclass(frozen=True)
class Views:
    """The graph that a model's page folds and unfolds."""

    packed: str = ""
    """Shapes of the folds, by ``"unrolled"`` and, for a recurrent model, ``"rolled"``; packed as `gzip_base64` does."""
    kinds: tuple[str, ...] = ()


def read_views(report: ModelReport, folder: Path) -> tuple[Views, str]:
    """Return a model's views, and a message if they cannot be read."""
    file = folder / views_path(report)
    if not report.graph:
        return Views(), ""
    try:
        return from_json(file.read_text(encoding="utf-8"), Views), ""
    except FileNotFoundError:
        return Views(), f"no graph: {views_path(report)} is not in the report's folder"
    except (OSError, ValueError) as error:
        return Views(), f"no graph: {views_path(report)} is damaged ({error})"


def make_views(history: HistoryRecord) -> Views:
    """Lay out the folds of a model.

    Raises
    ------
    DrawingUnavailable
        If Graphviz is missing or fails.
    """
    shapes = {"unrolled": fold_shapes(history)}
    if any(op.pass_num > 1 for op in history.operations):
        shapes["rolled"] = fold_shapes(history, DrawOptions(vis_opt="rolled"))
    return Views(gzip_base64(json.dumps(shapes, separators=(",", ":"))), tuple(shapes))


def gzip_base64(text: str) -> str:
    """Return a text, gzipped and in base64, which browsers can unpack."""
    return base64.b64encode(gzip.compress(text.encode(errors="backslashreplace"), mtime=0)).decode()


def row_id(operation: Operation) -> str:
    """Return the id of an operation's row in the table of layers."""
    return "row-" + id_part(operation.label)


_WORDS: Final = {"true": True, "false": False, "none": None}


def _number(text: str) -> object:
    return int(text) if text.isdecimal() else _word(text)


def _word(text: str) -> object:
    return _WORDS.get(text.lower(), text)


# Parsers of the settings that have a text form; settings that take mappings or functions have none.
_SETTINGS: Final[dict[str, Callable[[str], object]]] = {
    "format": str,
    "vis_opt": str,
    "vis_nesting_depth": _number,
    "direction": str,
    "focus": str,
    "color_by": str,
    "theme": str,
    "legend": _word,
    "repeats": _word,
    "max_nodes": _number,
}

_SWITCHES: Final = ("legend", "repeats")
"""Settings that need no value."""


@dataclass(frozen=True)
class Graphs:
    """Output folder, format and options of drawings."""

    folder: Path
    format: str = "svg"
    options: DrawOptions = field(default_factory=DrawOptions)
    settings: tuple[str, ...] = ()
    """The settings as text."""

    @classmethod
    def of(cls, folder: Path, settings: Iterable[str]) -> Graphs:
        """Read settings such as ``format=pdf``, ``vis_opt=rolled``, ``vis_nesting_depth=2``.

        Raises
        ------
        OptionError, TypeError
            If a setting is unknown, or its value is invalid.
        """
        settings = tuple(settings)
        pairs = _pairs(settings)
        ending = pairs.pop("format", "svg")
        choice(*FORMATS).check("format", ending)
        if (name := str(pairs.get("color_by", METRICS[0]))) not in METRICS:
            raise OptionError(f"color_by: expected a metric that records have, got {name!r}; {nearest(name, METRICS)}")
        options = DrawOptions.of(**pairs)
        check_draws(options)
        return cls(folder, str(ending), options, settings)

    @property
    def needs_measurements(self) -> bool:
        """Whether colours show a metric that only measured models have."""
        return self.options.color_by in MEASURED_METRICS

    def path(self, report: ModelReport) -> Path:
        """Return the path of a model's drawing: ``<zoo>/<model>.svg`` for plain names."""
        page = page_path(report)
        return self.folder / page.parent.name / page.with_suffix(f".{self.format}").name

    def draw(self, report: ModelReport) -> str:
        """Draw a model; return an error message, or ``""``.

        Raises
        ------
        OptionError
            If an option does not fit this model.
        UnwritableError
            If the file cannot be written.
        """
        if report.history is None:
            return ""
        path = self.path(report)
        try:
            make_folder(path.parent)
            write_drawing(dot_source(report.history, self.options, measurements=report.measurements), path)
        except DrawingUnavailable as error:
            return str(error)
        return ""


def _pairs(settings: Iterable[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in map(_pair, settings):
        if name in found:
            raise OptionError(f"{name}: expected one value, got two")
        found[name] = value
    return found


def _pair(setting: str) -> tuple[str, object]:
    name, equals, value = map(str.strip, setting.partition("="))
    if not equals and name in _SWITCHES:
        return name, True
    if not equals:
        raise OptionError(f"expected NAME=VALUE such as vis_opt=rolled, got {setting.strip()!r}")
    if name not in _SETTINGS:
        raise OptionError(f"expected a drawing setting, got {name!r}; {nearest(name, _SETTINGS)}")
    return name, _SETTINGS[name](value)
