"""Drawings that notebooks show: one in no file, and the picture of a history."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.draw.dot import scene_source
from pytest_torchlens.draw.draw_options import DrawOptions
from pytest_torchlens.draw.drawing import PATIENCE
from pytest_torchlens.draw.drawing import DrawingUnavailable
from pytest_torchlens.draw.drawing import check_path
from pytest_torchlens.draw.drawing import live_record
from pytest_torchlens.draw.drawing import render
from pytest_torchlens.draw.drawing import save_drawing
from pytest_torchlens.draw.drawing import source_of
from pytest_torchlens.draw.drawing import source_of_difference
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.records import HistoryRecord

if TYPE_CHECKING:
    from pytest_torchlens.history.view import HistoryView


@dataclasses.dataclass(frozen=True, repr=False)
class Drawing:
    """A drawing in no file: a notebook shows it where it is the last value of a cell, and `save` writes it.

    Attributes
    ----------
    dot
        Its source in DOT, Graphviz's language.
    svg
        The picture.
    """

    dot: str
    svg: str = dataclasses.field(compare=False)

    def save(self, path: Path | str) -> Path:
        """Write the drawing, and return its path.

        Parameters
        ----------
        path
            Its ending is the format: ``.svg``, ``.pdf``, ``.png`` or ``.dot``.

        Raises
        ------
        OptionError
            If the ending is not a format, or there can be no such file.
        DrawingUnavailable
            If Graphviz cannot make it on this machine, or the file cannot be written.
        """
        path = check_path(path)
        save_drawing(self.dot, path)
        return path

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        """Return one line."""
        return "<Drawing: a notebook shows it; drawing.save('graph.svg') writes it>"


def show(history: HistoryView, options: DrawOptions) -> Drawing:
    """Return a history's drawing; parameters and errors are those of `draw`."""
    return _drawing(source_of(history, options))


def show_difference(
    before: HistoryView | HistoryRecord, after: HistoryView | HistoryRecord, options: DrawOptions
) -> Drawing:
    """Return the drawing of a difference; parameters and errors are those of `draw_difference`."""
    return _drawing(source_of_difference(before, after, options))


def _drawing(dot: str) -> Drawing:
    return Drawing(dot, render(dot, timeout=PATIENCE).decode())


_NODES = 60
_LARGEST = 1_000_000  # bytes: a notebook stores its pictures
_SHORT_PATIENCE = 15.0  # seconds


def picture_of(history: HistoryView) -> str | None:
    """Return a history's rolled graph as SVG; None if Graphviz is missing, or it would be too large or take long."""
    scene = Scene.of(live_record(history), history.measurements)
    dot = scene_source(scene, DrawOptions(vis_opt="rolled", max_nodes=_NODES))
    try:
        svg = render(dot, timeout=_SHORT_PATIENCE).decode()
    except DrawingUnavailable:
        return None
    return svg if len(svg) <= _LARGEST else None
