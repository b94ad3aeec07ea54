"""Draws models for reports.

`save_drawing` draws the whole model, each level and each module.  `inline_drawing` turns an SVG into HTML.
`Graphs` writes one drawing per model for ``--lens-graph``.
"""

from __future__ import annotations

import base64
import gzip
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_torchlens.draw import DrawingUnavailable
from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import module_id
from pytest_torchlens.draw import render
from pytest_torchlens.draw import write_drawing
from pytest_torchlens.draw.draw_options import check_draws
from pytest_torchlens.draw.drawing import FORMATS
from pytest_torchlens.draw.drawing import LayoutStopped
from pytest_torchlens.draw.metric import MEASURED_METRICS
from pytest_torchlens.draw.metric import METRICS
from pytest_torchlens.draw.text import id_part
from pytest_torchlens.draw.text import shorten
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of
from pytest_torchlens.records import from_json
from pytest_torchlens.records import nearest
from pytest_torchlens.records import to_json
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import make_folder
from pytest_torchlens.records.options import OptionError
from pytest_torchlens.records.options import choice
from pytest_torchlens.report.paths import drawing_path
from pytest_torchlens.report.paths import page_path
from pytest_torchlens.report.paths import views_path

_SVG = "{http://www.w3.org/2000/svg}"

_XLINK = "{http://www.w3.org/1999/xlink}"

_XML_SPACE = "{http://www.w3.org/XML/1998/namespace}space"

_POINT = 4 / 3
"""CSS pixels per Graphviz point."""


FEW_NODES = 60
"""Node limit for graphs whose full layout takes too long."""


MOST_MODULES: Final = 60
"""Maximum number of modules with their own drawing, outermost first; a drawing takes about 30 ms and 5 KB."""

_ARROW: Final = " -> "

_MOST_ARROWS: Final = 300
"""Maximum number of arrows in the drawing of a level or module; more take seconds."""

_LESS: Final = 0.7
"""Maximum share of all arrows in a level's drawing; above it, the level is hardly simpler than the whole."""

_READABLE: Final = 60
"""A page first shows the deepest level with at most this many nodes."""

_DEEPEST: Final = 6


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
        views = make_views(report.history, svg)
    except DrawingUnavailable as error:
        return replace(report, graph="", notes=(*report.notes, str(error)))
    write_atomically(folder / drawing_path(report), svg)
    write_atomically(folder / views_path(report), to_json(views))
    return replace(report, graph=str(drawing_path(report)))


@dataclass(frozen=True, kw_only=True)
class DrawingView:
    """One drawing."""

    key: str
    """``"level-1"``, ``"all"``, or the id of a module's node."""
    title: str
    width: int
    """Pixels at natural size."""
    height: int
    ids: tuple[str, ...]
    """Ids of its nodes and boxes."""
    svg: str
    """The drawing, gzipped and in base64, because a page has dozens."""


@dataclass(frozen=True, kw_only=True)
class Views:
    """All drawings of a model."""

    views: tuple[DrawingView, ...] = ()
    first: str = ""
    """Key of the drawing that the page shows first."""
    num_modules_left_out: int = 0


@dataclass(frozen=True)
class _ViewSource:
    key: str
    title: str
    dot: str


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


def make_views(history: HistoryRecord, drawing: bytes) -> Views:
    """Draw a model at each level, and each of its modules alone.

    Parameters
    ----------
    history
        The forward pass.
    drawing
        An SVG of all operations, or of modules where there are too many.

    Raises
    ------
    DrawingUnavailable
        If Graphviz is missing or fails.
    """
    levels, modules = list(_levels(history)), _modules(history)
    inner = [_module(history, call) for call in modules[:MOST_MODULES]]
    wanted = [*levels, *(each for each in inner if each.dot.count(_ARROW) <= _MOST_ARROWS)]
    # Render all in one process, because starting one takes longer than most drawings.
    drawn = render("\n".join(each.dot for each in wanted)).split(b"<?xml")[1:] if wanted else []
    views = [_view(each.key, each.title, b"<?xml" + svg) for each, svg in zip(wanted, drawn, strict=True)]
    views.insert(len(levels), _view("all", "All operations", drawing))
    return Views(
        views=tuple(views),
        first=_first(views[: len(levels) + 1]),
        num_modules_left_out=len(modules) - (len(wanted) - len(levels)),
    )


def _levels(history: HistoryRecord) -> Iterator[_ViewSource]:
    """Yield the model at each level, until a level is hardly simpler than the whole drawing."""
    everything, before = dot_source(history), ""
    for level in range(1, _DEEPEST + 1):
        dot = dot_source(history, DrawOptions(vis_nesting_depth=level))
        if dot in (everything, before) or dot.count(_ARROW) > min(_MOST_ARROWS, _LESS * everything.count(_ARROW)):
            return
        yield _ViewSource(f"level-{level}", f"Modules at level {level}", dot)
        before = dot


def _modules(history: HistoryRecord) -> list[str]:
    """Return each module's first call if it ran several operations, outermost first."""
    addresses = {module.address for module in history.modules}
    calls = [call for op in history.operations for call in op.containing_module_origin_nested]
    firsts = {address_of(call, addresses): call for call in reversed(calls)}
    sizes = Counter(calls)
    return sorted((call for call in firsts.values() if sizes[call] > 1), key=lambda call: call.count("."))


def _module(history: HistoryRecord, call: str) -> _ViewSource:
    kinds = {module.address: module.module_type for module in history.modules}
    kind = kinds.get(address_of(call, kinds), "")
    options = DrawOptions(focus=call, vis_nesting_depth=1, max_nodes=150)
    return _ViewSource(module_id(call), f"{shorten(call)} ({shorten(kind)})", dot_source(history, options))


def _first(levels: list[DrawingView]) -> str:
    readable = [view.key for view in levels if sum(id_.startswith(("op-", "module-")) for id_ in view.ids) <= _READABLE]
    return readable[-1] if readable else levels[0].key


def _view(key: str, title: str, svg: bytes) -> DrawingView:
    drawing = inline_drawing(svg)
    ids = tuple(sorted(id_ for id_ in drawing.ids if id_.startswith(("op-", "module-"))))
    return DrawingView(
        key=key, title=title, width=drawing.width, height=drawing.height, ids=ids, svg=gzip_base64(drawing.svg)
    )


def gzip_base64(text: str) -> str:
    """Return a text, gzipped and in base64, which browsers can unpack."""
    return base64.b64encode(gzip.compress(text.encode(errors="backslashreplace"), mtime=0)).decode()


@dataclass(frozen=True)
class InlineDrawing:
    """A drawing that is embedded in a page."""

    svg: str
    width: int
    """Pixels at natural size."""
    height: int
    ids: frozenset[str]
    """Ids of the nodes and boxes, as targets of links."""


def row_id(operation: Operation) -> str:
    """Return the id of an operation's row in the table of layers."""
    return "row-" + id_part(operation.label)


def inline_drawing(svg: bytes) -> InlineDrawing:
    """Return an SVG file from Graphviz as an HTML fragment.

    Raises
    ------
    ValueError
        If the file is not an SVG from Graphviz.
    """
    try:
        root = ET.fromstring(svg)  # noqa: S314 - our own file; a damaged one must not break the page
        width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    except (ET.ParseError, KeyError, ValueError) as error:
        raise ValueError(f"expected an SVG written by Graphviz: {error}") from None
    for element in list(root.iter()):
        _to_html(element)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    ids = frozenset(group.get("id", "") for group in root.iter("g"))
    return InlineDrawing(ET.tostring(root, encoding="unicode"), round(width * _POINT), round(height * _POINT), ids)


def _to_html(element: ET.Element) -> None:
    """Drop namespaces, which HTML does not need, and turn Graphviz's link titles into tooltips."""
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
        # Skip links in the tab order: a graph has hundreds, and keyboard users have the layer table.
        element.attrib |= {"href": f"#{target.partition('#')[2]}", "tabindex": "-1"}


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
