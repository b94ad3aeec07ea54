"""Pages in HTML that open from a disk: no request leaves them, and only our own script runs."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from pytest_torchlens.draw.text import counted
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import shortened
from pytest_torchlens.records import byte_size
from pytest_torchlens.report import summary
from pytest_torchlens.report.drawing import inline_drawing
from pytest_torchlens.report.layers import layers
from pytest_torchlens.report.layers import module_tree
from pytest_torchlens.report.paths import page_path

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import RunReport
    from pytest_torchlens.report.drawing import InlineDrawing

MAX_ROWS = 4_000
"""Rows of the table of layers; a row takes about one kilobyte, a page has to stay below five megabytes."""

_MARKS = {
    "passed": "✓",
    "passed-with-tolerance": "≈",
    "failed": "✕",
    "xpassed": "✓",
    "xfailed": "✕",
}


class Pages:
    """Writes the pages of one run."""

    def __init__(self, run: RunReport) -> None:
        self.run = run
        self.jinja = jinja2.Environment(
            loader=jinja2.PackageLoader("pytest_torchlens.report"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.jinja.filters |= {"bytes": byte_size, "shape": shape_text, "short": shortened}
        self.jinja.filters |= {"mark": _mark, "tail": _tail}
        self.jinja.globals |= {"counted": counted, "status": summary.status, "failed_at": summary.failed_at}
        self.jinja.globals |= self._assets()

    def index(self) -> str:
        """Return the page with all models."""
        models = [(report, str(page_path(report))) for report in self.run.models]
        counts = _counts(self.run.models)
        return self.jinja.get_template("index.html.j2").render(run=self.run, models=models, counts=counts)

    def model(self, report: ModelReport, svg: bytes | None) -> str:
        """Return the page of one model; `svg` is its drawing."""
        drawing, notes = _drawing(report, svg)
        history = report.history
        rows = list(layers(history, drawing.ids if drawing else frozenset())) if history else []
        if len(rows) > MAX_ROWS:
            notes.append(f"the table shows the first {MAX_ROWS:,} of {len(rows):,} layers; the JSON file has all")
        return self.jinja.get_template("model.html.j2").render(
            run=self.run,
            report=report,
            trouble=summary.trouble(report),
            drawing=drawing,
            layers=rows[:MAX_ROWS],
            tree=module_tree(history) if history else [],
            notes=[*report.notes, *notes],
            stem=PurePosixPath(page_path(report)).stem,
        )

    def _assets(self) -> dict[str, object]:
        folder = files("pytest_torchlens.report") / "templates"
        style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        return {
            "style": Markup(style),  # noqa: S704 - our own file
            "script": Markup(script),  # noqa: S704 - our own file
            "policy": f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)}; "
            "base-uri 'none'; form-action 'none'",
        }


def _mark(word: str) -> str:
    return _MARKS.get(word, "○")


def _tail(source_line: str) -> str:
    """Return a source line with no more of its path than the file and the folder it lies in."""
    parts = source_line.replace("\\", "/").split("/")
    return "/".join(parts[-2:])


def _allowed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _drawing(report: ModelReport, svg: bytes | None) -> tuple[InlineDrawing | None, list[str]]:
    if svg is None:
        missing = report.graph and f"the drawing {report.graph} is not in the report's folder"
        return None, [missing] if missing else []
    try:
        return inline_drawing(svg), []
    except ValueError as error:
        return None, [str(error)]


def _counts(models: tuple[ModelReport, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for report in models:
        word = summary.status(report)
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (item[0] != "failed", item[0])))
