"""A history's drawing in a file."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.draw.difference import difference
from pytest_torchlens.draw.dot import Link
from pytest_torchlens.draw.dot import scene_source
from pytest_torchlens.draw.engine import FORMATS
from pytest_torchlens.draw.engine import DrawingUnavailable
from pytest_torchlens.draw.engine import render
from pytest_torchlens.draw.metric import NO_GRADIENT
from pytest_torchlens.draw.options import DrawOptions
from pytest_torchlens.draw.options import OptionError
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.draw.text import printable
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import nearest

if TYPE_CHECKING:
    from pytest_torchlens.history.view import HistoryView


_PATIENCE = 600.0
"""Seconds for a drawing that someone asked for; a report is less patient."""


def draw(history: HistoryView, path: Path | str, options: DrawOptions, *, link: Link | None = None) -> Path:
    """Write a history's drawing and return its path.

    Parameters
    ----------
    history
        The forward pass.
    path
        Its ending is the format: ``.svg`` (also without one), ``.pdf``, ``.png`` or ``.dot``.
    options
        What is shown, and how.
    link
        Gives the URL that an operation's node leads to.

    Raises
    ------
    OptionError
        If the options do not fit this model, or ask for no drawing, or the ending is no format.
    DrawingUnavailable
        If Graphviz cannot make it on this machine.
    """
    path = checked_path(path)
    gradients = (
        frozenset(op.label for op in history.operations if op.has_saved_grad) if options.gradients else frozenset()
    )
    if options.gradients and not gradients:
        raise OptionError(NO_GRADIENT)
    scene = Scene.of(live_record(history), history.measurements)
    write_drawing(scene_source(scene, options, link=link, gradients=gradients, warns=True), path)
    return path


def draw_difference(
    before: HistoryView | HistoryRecord, after: HistoryView | HistoryRecord, path: Path | str, options: DrawOptions
) -> Path:
    """Draw two forward passes as one graph, and return the drawing's path.

    Parameters
    ----------
    before, after
        Histories, or their records.
    path
        As in `draw`.
    options
        What is shown, and how.  Modules that are the same, or new or gone as a whole, are drawn as one node
        each, if no depth is asked for.

    Raises
    ------
    OptionError, DrawingUnavailable
        As `draw` does.
    """
    path = checked_path(path)
    if options.gradients:
        raise OptionError("a difference shows no gradients; draw each pass by itself: history.draw(gradients=True)")
    scene = difference(live_record(before, "before"), live_record(after, "after"))
    write_drawing(scene_source(scene, options, warns=True), path)
    return path


def live_record(history: HistoryView | HistoryRecord, name: str = "history") -> HistoryRecord:
    """Return a history's record whose operations are the live ones, with their tensors; `name` is the argument's."""
    if isinstance(history, HistoryRecord):
        return history
    if not hasattr(history, "record_without_operations"):
        raise TypeError(
            f"{name} is {printable(repr(history)):.80}; it takes a history (or its record), as in "
            "after.draw_difference(before, 'difference.svg')"
        )
    return dataclasses.replace(history.record_without_operations(), operations=tuple(history.operations))


def checked_path(path: Path | str, name: str = "path") -> Path:
    """Return where a drawing goes; `name` is the argument's.

    Raises
    ------
    OptionError
        If there can be no file, or the ending is no format.
    TypeError
        If it is no path.
    """
    if not isinstance(path, str | Path):
        raise TypeError(f"{name} is {path!r:.80}; it takes the path of a file, as in 'graph.svg'")
    path = Path(path)
    if why := _why_no_file(path):
        raise OptionError(f"{name} {str(path)!r:.200} {why}; name a file in one, as in 'graph.svg'")
    path = path if path.suffix else path.with_suffix(".svg")
    if path.suffix.removeprefix(".") not in FORMATS:
        endings = [f".{format_}" for format_ in FORMATS]
        raise OptionError(f"{name} {str(path)!r} ends in no format; {nearest(path.suffix, endings)}")
    return path


def _why_no_file(path: Path) -> str:
    try:
        return "is a folder" if stat.S_ISDIR(path.stat().st_mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return "" if path.parent.is_dir() else "is in no folder that is there"
    except (OSError, ValueError) as error:
        return f"cannot be a file's ({getattr(error, 'strerror', None) or error})"


def write_drawing(dot: str, path: Path) -> None:
    """Write a DOT source in the format of the path's ending.

    Raises
    ------
    DrawingUnavailable
        If Graphviz cannot make it on this machine, or the file cannot be written.
    """
    format_ = path.suffix.removeprefix(".")
    drawn = dot.encode() if format_ == "dot" else render(dot, format_, timeout=_PATIENCE)
    try:
        path.write_bytes(drawn)
    except OSError as error:
        raise DrawingUnavailable(f"no drawing: {path} cannot be written ({error.strerror})") from None
