"""Drawings of a model at each level, and of each of its modules, for its page to show one at a time."""

from __future__ import annotations

import base64
import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import module_id
from pytest_torchlens.draw import render
from pytest_torchlens.draw.text import shortened
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import address_of
from pytest_torchlens.records import from_json
from pytest_torchlens.report.inline import inline_drawing
from pytest_torchlens.report.paths import views_path

MOST_MODULES: Final = 60
"""Modules that have a drawing of their own, outermost first; a drawing takes about 30 ms and 5 KB."""
_ARROW: Final = " -> "
_MOST_ARROWS: Final = 300
"""In a level or a module: beyond it a drawing takes seconds."""
_LESS: Final = 0.7
"""Part of all arrows that a level has at most: with more it shows hardly less than the drawing of all operations."""
_READABLE: Final = 60
"""Nodes that a page begins with, at most, where a level has no more."""
_DEEPEST: Final = 6


@dataclass(frozen=True, kw_only=True)
class View:
    """One drawing."""

    key: str
    """``"level-1"``, ``"all"``, or the id of a module's node."""
    title: str
    width: int
    """Pixels at natural size."""
    height: int
    ids: tuple[str, ...]
    """Of the nodes and boxes in it."""
    svg: str
    """The drawing, as base64 of gzip: a page has dozens."""


@dataclass(frozen=True, kw_only=True)
class Views:
    """All drawings of a model."""

    views: tuple[View, ...] = ()
    first: str = ""
    """Key of the one to begin with."""
    num_modules_left_out: int = 0


@dataclass(frozen=True)
class _Wanted:
    key: str
    title: str
    dot: str


def read_views(report: ModelReport, folder: Path) -> tuple[Views, str]:
    """Return a model's views, and why there are none where that is not in its notes."""
    file = folder / views_path(report)
    if not report.graph:
        return Views(), ""
    try:
        return from_json(file.read_text(encoding="utf-8"), Views), ""
    except FileNotFoundError:
        return Views(), f"no graph: {views_path(report)} is not in the report's folder"
    except (OSError, ValueError) as error:
        return Views(), f"no graph: {views_path(report)} is damaged ({error})"


def packed(text: str) -> str:
    """Return a text as base64 of gzip, which browsers unpack by themselves."""
    return base64.b64encode(gzip.compress(text.encode(errors="backslashreplace"), mtime=0)).decode()


def make_views(history: HistoryRecord, drawing: bytes) -> Views:
    """Draw a model at each level, and each of its modules alone.

    Parameters
    ----------
    history
        The forward pass.
    drawing
        An SVG of all operations, or as many as can be.

    Raises
    ------
    DrawingUnavailable
        If there is no Graphviz, or it fails.
    """
    levels, modules = list(_levels(history)), _modules(history)
    inner = [_module(history, call) for call in modules[:MOST_MODULES]]
    wanted = [*levels, *(each for each in inner if each.dot.count(_ARROW) <= _MOST_ARROWS)]
    # One process for all: starting one takes longer than most drawings.
    drawn = render("\n".join(each.dot for each in wanted)).split(b"<?xml")[1:] if wanted else []
    views = [_view(each.key, each.title, b"<?xml" + svg) for each, svg in zip(wanted, drawn, strict=True)]
    views.insert(len(levels), _view("all", "All operations", drawing))
    return Views(
        views=tuple(views),
        first=_first(views[: len(levels) + 1]),
        num_modules_left_out=len(modules) - (len(wanted) - len(levels)),
    )


def _levels(history: HistoryRecord) -> Iterator[_Wanted]:
    """Yield the whole model, its modules opened ever deeper, while that is less than all."""
    everything, before = dot_source(history), ""
    for level in range(1, _DEEPEST + 1):
        dot = dot_source(history, DrawOptions(vis_nesting_depth=level))
        if dot in (everything, before) or dot.count(_ARROW) > min(_MOST_ARROWS, _LESS * everything.count(_ARROW)):
            return
        yield _Wanted(f"level-{level}", f"Modules at level {level}", dot)
        before = dot


def _modules(history: HistoryRecord) -> list[str]:
    """Return the module calls of several operations, the outermost first; of a module called often, the first."""
    addresses = {module.address for module in history.modules}
    calls = [call for op in history.operations for call in op.containing_module_origin_nested]
    firsts = {address_of(call, addresses): call for call in reversed(calls)}
    sizes = Counter(calls)
    return sorted((call for call in firsts.values() if sizes[call] > 1), key=lambda call: call.count("."))


def _module(history: HistoryRecord, call: str) -> _Wanted:
    kinds = {module.address: module.module_type for module in history.modules}
    kind = kinds.get(address_of(call, kinds), "")
    options = DrawOptions(focus=call, vis_nesting_depth=1, max_nodes=150)
    return _Wanted(module_id(call), f"{shortened(call)} ({shortened(kind)})", dot_source(history, options))


def _first(levels: list[View]) -> str:
    readable = [view.key for view in levels if sum(id_.startswith(("op-", "module-")) for id_ in view.ids) <= _READABLE]
    return readable[-1] if readable else levels[0].key


def _view(key: str, title: str, svg: bytes) -> View:
    drawing = inline_drawing(svg)
    ids = tuple(sorted(id_ for id_ in drawing.ids if id_.startswith(("op-", "module-"))))
    return View(key=key, title=title, width=drawing.width, height=drawing.height, ids=ids, svg=packed(drawing.svg))
