"""Writes HTML pages that open from disk, send no requests, and run only our own scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from functools import cached_property
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_torchlens.draw.text import duration
from pytest_torchlens.draw.text import magnitude
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import short_place
from pytest_torchlens.draw.text import shorten
from pytest_torchlens.draw.text import steps_text
from pytest_torchlens.records import ActivationStatistics
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Severity
from pytest_torchlens.records import byte_size
from pytest_torchlens.records import checks_text
from pytest_torchlens.records import count_text
from pytest_torchlens.report import summary
from pytest_torchlens.report.drawings import gzip_base64
from pytest_torchlens.report.drawings import row_id
from pytest_torchlens.report.layer_table import Costs
from pytest_torchlens.report.layer_table import LayerRow
from pytest_torchlens.report.layer_table import details
from pytest_torchlens.report.layer_table import flames
from pytest_torchlens.report.layer_table import layers
from pytest_torchlens.report.layer_table import module_tree
from pytest_torchlens.report.paths import page_path
from pytest_torchlens.report.summary import finding_rows
from pytest_torchlens.report.summary import severities
from pytest_torchlens.report.summary import was_audited
from pytest_torchlens.report.summary import weight

if TYPE_CHECKING:
    from pytest_torchlens.records import RunReport
    from pytest_torchlens.report.drawings import Views


_TABLES = ("templates/page.js",)

_GRAPH = ("vendor/uPlot.iife.min.js", "templates/folds.js", "templates/graph.js", "templates/plots.js")

_STYLES = ("vendor/uPlot.min.css", "templates/page.css")


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
        self.jinja.filters |= {"bytes": byte_size, "shape": shape_text, "short": shorten, "steps": steps_text}
        self.jinja.filters |= {
            "printable": printable,
            "mark": _mark,
            "place": short_place,
            "duration": duration,
            "magnitude": magnitude,
        }
        self.jinja.globals |= {
            "counted": count_text,
            "checks_text": checks_text,
            "status": summary.status,
            "chip_words": summary.chip_words,
            "severity_words": [severity.value for severity in Severity],
            "num_severe": summary.num_severe,
            "failed_at": summary.failed_at,
            "baseline_kind": summary.baseline_kind,
            "waits": summary.waits,
            "to_reproduce": summary.to_reproduce,
            "to_reproduce_change": summary.to_reproduce_change,
        }
        self.jinja.globals["failed_how"] = summary.failed_how
        self.jinja.globals |= assets()

    def index(self, *, has_training: bool = False) -> str:
        """Return the index page with all models; `has_training` adds a link to the training recordings."""
        models = [(report, str(page_path(report))) for report in sorted(self.run.models, key=summary.urgency)]
        counts = summary.counts(self.run.models)
        return self.jinja.get_template("index.html.j2").render(
            run=self.run,
            models=models,
            counts=counts,
            chips=summary.chips(self.run.models),
            has_training=has_training,
            totals=_totals(self.run.models),
            measured=any(report.measurements for report in self.run.models),
            audited=any(report.findings for report in self.run.models),
            checked=any(report.checks for report in self.run.models),
            severities=severities,
            weight=weight,
        )

    def model(self, report: ModelReport, views: Views) -> str:
        """Return the page of one model; `views` is its graph."""
        history = report.history
        costs, curves = Costs.of(report), charts(report)
        rows = list(layers(history)) if history else []
        notes = list(report.notes)
        if len(rows) > MAX_ROWS:
            notes.append(f"the table shows the first {MAX_ROWS:,} of {len(rows):,} tensors; the JSON file has all")
        return self.jinja.get_template("model.html.j2").render(
            run=self.run,
            report=report,
            trouble=summary.trouble(report),
            audited=was_audited(report),
            findings=finding_rows(report),
            severities=severities([report]),
            views=views,
            details=gzip_base64(json.dumps(details(report, costs), separators=(",", ":"))) if costs else "",
            has_layers=bool(rows),
            **self._layer_rows(report, costs, rows[:MAX_ROWS], has_graph=bool(views.packed)),
            **self._tree(report, costs),
            costs=costs,
            charts=curves,
            charts_data=gzip_base64(json.dumps(curves)),
            notes=notes,
            stem=PurePosixPath(page_path(report)).stem,
        )

    def _layer_rows(
        self, report: ModelReport, costs: Costs | None, layers: list[LayerRow], *, has_graph: bool
    ) -> dict[str, object]:
        """Return the rows of the layer table; many are packed, as the page needs only those in sight."""
        layer_row = self._parts.layer_row
        rows = [layer_row(layer, number, report, costs, has_graph) for number, layer in enumerate(layers, 1)]
        html = Markup("\n").join(rows)
        if len(rows) <= MOST_IN_HTML:
            return {"layer_rows": html, "packed_rows": ""}
        return {"layer_rows": "", "packed_rows": gzip_base64(html)}

    def _tree(self, report: ModelReport, costs: Costs | None) -> dict[str, object]:
        """Return the module tree; a large one is packed."""
        tree = module_tree(costs) if costs else []
        html = self._parts.module_tree(tree, report)
        packed = len(tree) > MOST_IN_HTML
        bars = flames(costs, tree) if costs else []
        return {
            "flames": bars,
            "tree": tree,
            "tree_html": "" if packed else html,
            "packed_tree": gzip_base64(html) if packed else "",
        }

    @cached_property
    def _parts(self) -> Any:
        return self.jinja.get_template("parts.html.j2").module


def _mark(word: str) -> str:
    return _MARKS.get(word, "○")


def _totals(models: tuple[ModelReport, ...]) -> list[str]:
    """Return the totals over all models."""
    histories = [report.history for report in models if report.history]
    verdicts = [report.verdict for report in models if report.verdict is not None]
    return [
        count_text(len(models), "model"),
        f"{magnitude(sum(history.total_params for history in histories))} params",
        count_text(sum(history.num_operations for history in histories), "operation"),
        f"{byte_size(sum(history.tensor_fsize_total for history in histories))} of activations",
        f"{sum(verdict.operations_checked for verdict in verdicts):,} operations checked",
        f"{sum(verdict.edges_checked for verdict in verdicts):,} edges",
        duration(sum(report.seconds for report in models)),
    ]


def charts(report: ModelReport) -> dict[str, Any]:
    """Return the data of each available chart: labels, table rows and series."""
    if report.history is None:
        return {}
    rows = {op.label: row_id(op) for op in report.history.operations}
    found: dict[str, Any] = {}
    if report.measurements and report.measurements.live_bytes:
        found["memory"] = _memory(report.measurements, rows)
    elif sizes := _sizes(report.history, rows):
        found["sizes"] = sizes
    if report.statistics and report.statistics.operations:
        found |= _statistics(report.statistics, rows)
    return found


def _memory(measured: Measurements, rows: dict[str, str]) -> dict[str, Any]:
    return _chart(measured.operations, rows, {"alive": measured.live_bytes})


def _sizes(history: HistoryRecord, rows: dict[str, str]) -> dict[str, Any]:
    operations = [op for op in history.operations if op.call_id >= 0]
    return _chart(tuple(op.label for op in operations), rows, {"size": tuple(op.tensor_fsize for op in operations)})


def _statistics(found: ActivationStatistics, rows: dict[str, str]) -> dict[str, Any]:
    above = tuple(mean + std for mean, std in zip(found.mean, found.std, strict=True))
    below = tuple(mean - std for mean, std in zip(found.mean, found.std, strict=True))
    values = {"max": found.maximum, "mean + std": above, "mean": found.mean, "mean − std": below, "min": found.minimum}
    shares = {"zeros": found.zeros, "not finite": found.not_finite}
    return {"values": _chart(found.operations, rows, values), "shares": _chart(found.operations, rows, shares)}


def _chart(
    labels: tuple[str, ...], rows: dict[str, str], series: dict[str, tuple[float, ...] | tuple[int, ...]]
) -> dict[str, Any]:
    finite = {name: [_number(value) for value in values] for name, values in series.items()}
    return {"labels": labels, "rows": [rows.get(label, "") for label in labels], "series": finite}


def _number(value: float) -> float | None:
    """Round a number to the five digits that a page shows; None if not finite, which JSON cannot hold."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


MOST_IN_HTML = 300
"""Rows of the layer table, and of the module tree, that the page has as HTML; longer ones are packed."""

MAX_ROWS = 20_000
"""Maximum rows of the layer table: a packed row takes about 100 bytes."""

_MARKS = {
    "passed": "✓",
    "passed-with-tolerance": "≈",
    "failed": "✕",
    "unproven": "?",
    "xpassed": "✓",
    "xfailed": "✕",
    "tie": "=",
    "error": "✕",
}


def assets() -> dict[str, object]:
    """Return the template variables: one style, one script for each kind of page, and the content security policy."""
    style, tables, everything = _join_files(_STYLES), _join_files(_TABLES), _join_files(_TABLES + _GRAPH)
    return {
        "style": Markup(style),  # noqa: S704 - our own files
        "table_script": Markup(tables),  # noqa: S704
        "model_script": Markup(everything),  # noqa: S704
        "policy": f"default-src 'none'; style-src {_script_hash(style)}; "
        f"script-src {_script_hash(tables)} {_script_hash(everything)}; base-uri 'none'; form-action 'none'",
    }


def _join_files(names: tuple[str, ...]) -> str:
    folder = files("pytest_torchlens.report")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8").strip() for name in names)


def _script_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
