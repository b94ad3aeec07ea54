"""Paths of a model's files in the report folder, and files that are written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path
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


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file and create its folders; a reader never sees a partial file, and a link stays a link.

    Raises
    ------
    OSError
        If writing fails; an existing file is then unchanged.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    if path.exists() and _is_special_file(path):
        with path.open("ab") as file:
            file.write(data)
        return path
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return path


def _is_special_file(path: Path) -> bool:
    """Whether a path is a device, a pipe, or a redirected stream such as ``/dev/stdout``."""
    return not path.is_file() or path.absolute().parts[1:2] in (("dev",), ("proc",))
