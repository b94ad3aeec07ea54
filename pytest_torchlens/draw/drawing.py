"""Draws a history into a file, with the layout made by Graphviz."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import subprocess
from importlib.metadata import PackageNotFoundError
from importlib.metadata import files
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.draw.difference import difference
from pytest_torchlens.draw.dot import Link
from pytest_torchlens.draw.dot import scene_source
from pytest_torchlens.draw.draw_options import DrawOptions
from pytest_torchlens.draw.metric import NO_GRADIENT
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.draw.text import printable
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import nearest
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.records.files import check_file
from pytest_torchlens.records.options import OptionError

if TYPE_CHECKING:
    from pytest_torchlens.history.view import HistoryView


FORMATS = ("svg", "pdf", "png", "dot")
"""File name endings of drawings."""
_VARIABLE = "PYTEST_LENS_DOT"
_WHEEL = "graphviz-pure"
_INSTALL_DOT = "install Graphviz (https://graphviz.org/download)"
_INSTALL = f"{_INSTALL_DOT} or run: pip install 'pytest-torchlens[dot]'; {_VARIABLE} may name the program instead"


class DrawingUnavailable(RuntimeError):  # noqa: N818 - a state, not a mistake
    """A drawing cannot be made; the message says why and what to do.  Everything else continues."""


class LayoutStopped(DrawingUnavailable):
    """The layout took too long; one of fewer nodes may not."""


def draw(history: HistoryView, path: Path | str, options: DrawOptions, *, link: Link | None = None) -> Path:
    """Write a history's drawing and return its path.

    Parameters
    ----------
    history
        The forward pass.
    path
        Its ending is the format: ``.svg`` (also without one), ``.pdf``, ``.png`` or ``.dot``.
    options
        What the drawing shows, and how.
    link
        Returns the URL that an operation's node links to.

    Raises
    ------
    OptionError
        If the options do not fit this model, or ask for no drawing, or the ending is not a format.
    DrawingUnavailable
        If Graphviz cannot make it on this machine, or the file cannot be written.
    """
    path = check_path(path)
    save_drawing(source_of(history, options, link), path)
    return path


def source_of(history: HistoryView, options: DrawOptions, link: Link | None = None) -> str:
    """Return the DOT source of a history's drawing; parameters and errors are those of `draw`."""
    gradients = (
        frozenset(op.label for op in history.operations if op.has_saved_grad) if options.gradients else frozenset()
    )
    if options.gradients and not gradients:
        raise OptionError(NO_GRADIENT)
    scene = Scene.of(live_record(history), history.measurements)
    return scene_source(scene, options, link=link, gradients=gradients, warns=True)


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
        What the drawing shows, and how.  Without a nesting depth, modules that are unchanged, added or removed as a
        whole are drawn as one node each.

    Raises
    ------
    OptionError, DrawingUnavailable
        As `draw` does.
    """
    path = check_path(path)
    save_drawing(source_of_difference(before, after, options), path)
    return path


def source_of_difference(
    before: HistoryView | HistoryRecord, after: HistoryView | HistoryRecord, options: DrawOptions
) -> str:
    """Return the DOT source of the drawing of a difference; parameters and errors are those of `draw_difference`."""
    if options.gradients:
        raise OptionError(
            "gradients: expected False for a difference, got True; draw each pass: history.draw(gradients=True)"
        )
    scene = difference(live_record(before, "before"), live_record(after, "after"))
    return scene_source(scene, options, warns=True)


def live_record(history: HistoryView | HistoryRecord, name: str = "history") -> HistoryRecord:
    """Return a history's record with the live operations and their tensors; `name` is the argument's name."""
    if isinstance(history, HistoryRecord):
        return history
    if not hasattr(history, "record_without_operations"):
        raise TypeError(
            f"{name}: expected a history or its record, as in after.draw_difference(before, 'difference.svg'), "
            f"got {printable(repr(history)):.80}"
        )
    return dataclasses.replace(history.record_without_operations(), operations=tuple(history.operations))


def check_path(path: Path | str, name: str = "path") -> Path:
    """Return the path of a drawing's file; `name` is the argument's name.

    Raises
    ------
    OptionError
        If the file cannot be written there, or the ending is not a format.
    TypeError
        If it is not a path.
    """
    if not isinstance(path, str | Path):
        raise TypeError(f"{name}: expected the path of a file, as in 'graph.svg', got {path!r:.80}")
    path = Path(path)
    if why := _why_no_file(path):
        raise OptionError(
            f"{name}: expected a file in an existing folder, as in 'graph.svg', got {str(path)!r:.200}, which {why}"
        )
    path = path if path.suffix else path.with_suffix(".svg")
    if path.suffix.removeprefix(".") not in FORMATS:
        endings = [f".{format_}" for format_ in FORMATS]
        raise OptionError(
            f"{name}: expected the ending of a format, got {str(path)!r}; {nearest(path.suffix, endings)}"
        )
    return path


def _why_no_file(path: Path) -> str:
    try:
        return "is a folder" if stat.S_ISDIR(path.stat().st_mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return "" if path.parent.is_dir() else "is in a folder that does not exist"
    except (OSError, ValueError) as error:
        return f"cannot name a file ({getattr(error, 'strerror', None) or error})"


def write_drawing(dot: str, path: Path) -> None:
    """Write a DOT source in the format of the path's ending.

    Raises
    ------
    DrawingUnavailable
        If Graphviz cannot make it on this machine.
    UnwritableError
        If the file cannot be written; that is found before the layout, which may take minutes.
    """
    check_file(path, make_folders=False)
    format_ = path.suffix.removeprefix(".")
    drawn = dot.encode() if format_ == "dot" else render(dot, format_, timeout=PATIENCE)
    write_atomically(path, drawn, make_folders=False)


def save_drawing(dot: str, path: Path) -> None:
    """Write a DOT source as `write_drawing` does; whatever is in the way is a `DrawingUnavailable`."""
    try:
        write_drawing(dot, path)
    except UnwritableError as error:
        raise DrawingUnavailable(f"no drawing: {error}") from None


PATIENCE = 600.0
"""Seconds for the layout of one requested drawing; a report allows less."""


def render(dot: str, format: str = "svg", *, timeout: float = 60.0) -> bytes:  # noqa: A002 - Graphviz's word
    """Return the drawing of a DOT source.

    The program is the one that ``PYTEST_LENS_DOT`` names, else ``dot`` on the PATH, else that of the package
    graphviz-pure.

    Parameters
    ----------
    dot
        DOT source.
    format
        Any that the program knows: ``"svg"``, ``"png"``, ``"pdf"`` (not with graphviz-pure).
    timeout
        Seconds allowed for the layout.

    Raises
    ------
    DrawingUnavailable
        If there is no program, or it fails; `LayoutStopped` if it takes longer than `timeout`.
    """
    program = _program()
    if format == "pdf" and Path(program).stem == _WHEEL:
        raise DrawingUnavailable(f"no PDF: {_WHEEL} makes none; {_INSTALL_DOT}, or draw .svg or .png")
    try:
        done = subprocess.run(  # noqa: S603 - the program is the user's own Graphviz
            [program, f"-T{format}"], input=dot.encode(), capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise LayoutStopped(
            f"no drawing: {program} was stopped after {timeout:g} s; draw fewer nodes (max_nodes, vis_nesting_depth)"
        ) from None
    except OSError as error:
        raise DrawingUnavailable(f"no drawing: {program} does not start ({error}); {_INSTALL}") from None
    if done.returncode:
        raise DrawingUnavailable(f"no drawing: {program} -T{format} failed: {_first_line(done.stderr)}")
    if not done.stdout.strip():
        raise DrawingUnavailable(f"no drawing: {program} -T{format} gave nothing; is it Graphviz? {_INSTALL}")
    return done.stdout


def _program() -> str:
    found = os.environ.get(_VARIABLE) or shutil.which("dot") or _from_wheel() or shutil.which(_WHEEL)
    if found is None:
        raise DrawingUnavailable(f"no drawing: Graphviz is not on this machine; {_INSTALL}")
    return found


def _from_wheel() -> str | None:
    """Find the wheel's program even if the environment's folder of scripts is not on the PATH."""
    try:
        scripts = [file for file in files(_WHEEL) or () if file.stem == _WHEEL]
    except PackageNotFoundError:
        return None
    return next((str(Path(str(script.locate())).resolve()) for script in scripts), None)


def _first_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else "it gave no reason"
