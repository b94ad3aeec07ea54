"""Paths of a model's files in the report folder."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_torchlens.records import file_name

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport


def page_path(report: ModelReport) -> PurePosixPath:
    """Return the path of a model's page, relative to the report's folder.

    The path is ``models/<zoo>/<model>.html`` for plain names.  Any other name keeps its readable characters
    and ends in a digest, so that two models never share a page and no path leaves the folder.  The same path with
    ``.json`` and ``.svg`` holds the model's record and its drawing.
    """
    return PurePosixPath("models") / file_name(report.zoo) / f"{file_name(report.name)}.html"


def drawing_path(report: ModelReport) -> PurePosixPath:
    """Return the path of a model's drawing, relative to the report's folder; the file may not exist."""
    return page_path(report).with_suffix(".svg")


def views_path(report: ModelReport) -> PurePosixPath:
    """Return the path of the drawings that a model's page shows, relative to the report's folder."""
    return page_path(report).with_suffix(".views.json")
