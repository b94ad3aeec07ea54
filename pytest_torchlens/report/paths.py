"""Where a model's files lie in the report's folder, whatever the model is called."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_torchlens.records import file_name

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport


def page_path(report: ModelReport) -> PurePosixPath:
    """Return the path of a model's page, relative to the report's folder.

    The path is ``models/<zoo>/<model>.html`` for plain names.  Any other name keeps what can be read of it and
    ends in a digest, so that two models never share a page and none leaves the folder.  The same path with
    ``.json`` and ``.svg`` holds the model's record and its drawing.
    """
    return PurePosixPath("models") / file_name(report.zoo) / f"{file_name(report.name)}.html"


def drawing_path(report: ModelReport) -> PurePosixPath:
    """Return the path of a model's drawing, relative to the report's folder; whether it is there is another matter."""
    return page_path(report).with_suffix(".svg")


def views_path(report: ModelReport) -> PurePosixPath:
    """Return the path of the drawings that a model's page shows, relative to the report's folder."""
    return page_path(report).with_suffix(".views.json")
