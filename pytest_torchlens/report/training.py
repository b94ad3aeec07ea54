"""A list of recordings of training, in the report's folder."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING

from pytest_torchlens.report.files import write_file

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "training"


def write_training_index(folder: Path, since: float) -> Path | None:
    """Write ``training/index.html``, a link to each recording; return its path.

    Parameters
    ----------
    folder
        The report's.
    since
        Seconds since the epoch; older recordings are another run's, and are not listed.

    Returns
    -------
    Path or None
        None where there is no recording; a list of earlier ones is removed.
    """
    found = sorted((folder / FOLDER).glob("*/recording-0.json"))
    recent = [path for path in found if path.stat().st_mtime >= since]
    index = folder / FOLDER / "index.html"
    if recent:
        return write_file(index, _page([_line(path) for path in recent]))
    index.unlink(missing_ok=True)
    return None


def _line(path: Path) -> str:
    report = json.loads(path.read_text(encoding="utf-8"))
    place = html.escape(f"{path.parent.name}/index.html")
    frames = sum(item["frames"] for item in report["items"])
    ended = "" if report["ended"] == "closed" else f", ended: {html.escape(report['ended'])}"
    name = html.escape(report["title"] or path.parent.name)
    return f'<li><a href="{place}">{name}</a> <small>{frames:,} frames{ended}</small></li>'


def _page(lines: list[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
        "<title>Training · pytest-torchlens</title></head>\n"
        f"<body><h1>Recordings of training</h1>\n<ul>\n{chr(10).join(lines)}\n</ul></body></html>\n"
    )
