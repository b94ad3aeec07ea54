"""Where a model's files lie in the report's folder, whatever the model is called."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport

_LONGEST = 80
# Lower case only: some file systems do not tell `Net` from `net`.
_SAFE = re.compile(rf"[a-z0-9](?:[a-z0-9._-]{{0,{_LONGEST - 2}}}[a-z0-9])?")
_DIGESTED = re.compile(r".*-[0-9a-f]{12}")
_RESERVED_ON_WINDOWS = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")


def page_path(report: ModelReport) -> PurePosixPath:
    """Return the path of a model's page, relative to the report's folder.

    The path is ``models/<zoo>/<model>.html`` for plain names.  Any other name keeps what can be read of it and
    ends in a digest, so that two models never share a page and none leaves the folder.  The same path with
    ``.json`` and ``.svg`` holds the model's record and its drawing.
    """
    return PurePosixPath("models") / _file_name(report.zoo) / f"{_file_name(report.name)}.html"


def drawing_path(report: ModelReport) -> PurePosixPath:
    """Return the path of a model's drawing, relative to the report's folder; whether it is there is another matter."""
    return page_path(report).with_suffix(".svg")


def views_path(report: ModelReport) -> PurePosixPath:
    """Return the path of the drawings that a model's page shows, relative to the report's folder."""
    return page_path(report).with_suffix(".views.json")


def _file_name(name: str) -> str:
    taken = _DIGESTED.fullmatch(name) or _RESERVED_ON_WINDOWS.fullmatch(name)
    if _SAFE.fullmatch(name) and not taken:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9._]+", "-", name.lower())[:_LONGEST].strip("-._")
    return f"{readable or 'unnamed'}-{digest}"
