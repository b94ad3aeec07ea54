"""The drawings of a model: made, and kept beside its page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_torchlens.draw import DrawingUnavailable
from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import render
from pytest_torchlens.draw.drawing import LayoutStopped
from pytest_torchlens.records import to_json
from pytest_torchlens.report.files import write_file
from pytest_torchlens.report.inline import row_id
from pytest_torchlens.report.paths import drawing_path
from pytest_torchlens.report.paths import page_path
from pytest_torchlens.report.paths import views_path
from pytest_torchlens.report.views import make_views

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchlens.records import ModelReport


FEW_NODES = 60
"""What can be laid out in time whatever the arrows."""


def save_drawing(report: ModelReport, folder: Path, *, max_nodes: int = 600) -> ModelReport:
    """Draw a model into the report's folder: as a whole, and the views of its page.

    Parameters
    ----------
    report
        With its history; without one there is nothing to draw.
    folder
        The report's folder; made where it does not exist.
    max_nodes
        Above this number of nodes modules are drawn as one node each.

    Returns
    -------
    ModelReport
        The report with the drawing's path in ``graph``, or with a note that says why there is none.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    if report.history is None:
        return report
    path, history = page_path(report), report.history

    def drawn(max_nodes: int) -> bytes:
        options = DrawOptions(max_nodes=max_nodes)
        return render(dot_source(history, options, link=lambda operation: f"{path.name}#{row_id(operation)}"))

    try:
        try:
            svg = drawn(max_nodes)
        except LayoutStopped:  # so many arrows that only modules can be drawn
            svg = drawn(min(max_nodes, FEW_NODES))
        views = make_views(report.history, svg)
    except DrawingUnavailable as error:
        return replace(report, graph="", notes=(*report.notes, str(error)))
    write_file(folder / drawing_path(report), svg)
    write_file(folder / views_path(report), to_json(views))
    return replace(report, graph=str(drawing_path(report)))
