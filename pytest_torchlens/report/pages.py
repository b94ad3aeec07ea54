"""Pages in HTML that open from a disk: no request leaves them, and only our own script runs."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import jinja2

from pytest_torchlens.draw.text import counted
from pytest_torchlens.draw.text import duration
from pytest_torchlens.draw.text import magnitude
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import short_place
from pytest_torchlens.draw.text import shortened
from pytest_torchlens.records import byte_size
from pytest_torchlens.report import summary
from pytest_torchlens.report.assets import assets
from pytest_torchlens.report.charts import charts
from pytest_torchlens.report.costs import Costs
from pytest_torchlens.report.details import details
from pytest_torchlens.report.findings import severities
from pytest_torchlens.report.findings import told
from pytest_torchlens.report.findings import was_audited
from pytest_torchlens.report.findings import weight
from pytest_torchlens.report.layers import layers
from pytest_torchlens.report.layers import module_tree
from pytest_torchlens.report.paths import page_path
from pytest_torchlens.report.views import packed

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import RunReport
    from pytest_torchlens.report.views import Views

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
        self.jinja.filters |= {"mark": _mark, "tail": short_place, "duration": duration, "magnitude": magnitude}
        self.jinja.globals |= {"counted": counted, "status": summary.status, "failed_at": summary.failed_at}
        self.jinja.globals["failed_how"] = summary.failed_how
        self.jinja.globals |= assets()

    def index(self, *, has_training: bool = False) -> str:
        """Return the page with all models; `has_training` for a link to what was recorded of training."""
        models = [(report, str(page_path(report))) for report in self.run.models]
        counts = summary.counts(self.run.models)
        return self.jinja.get_template("index.html.j2").render(
            run=self.run,
            models=models,
            counts=counts,
            has_training=has_training,
            totals=_totals(self.run.models),
            measured=any(report.measurements for report in self.run.models),
            audited=any(report.findings for report in self.run.models),
            severities=severities,
            weight=weight,
        )

    def model(self, report: ModelReport, views: Views) -> str:
        """Return the page of one model; `views` are its drawings."""
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
            findings=told(report),
            severities=severities([report]),
            views=views,
            details=packed(json.dumps(details(report, costs, views))) if costs else "",
            layers=rows[:MAX_ROWS],
            tree=module_tree(costs) if costs else [],
            costs=costs,
            charts=curves,
            charts_data=packed(json.dumps(curves)),
            notes=notes,
            stem=PurePosixPath(page_path(report)).stem,
        )


def _mark(word: str) -> str:
    return _MARKS.get(word, "○")


def _totals(models: tuple[ModelReport, ...]) -> list[str]:
    """Return what all models come to together."""
    histories = [report.history for report in models if report.history]
    verdicts = [report.verdict for report in models if report.verdict is not None]
    return [
        counted(len(models), "model"),
        f"{magnitude(sum(history.total_params for history in histories))} params",
        counted(sum(history.num_operations for history in histories), "operation"),
        f"{byte_size(sum(history.tensor_fsize_total for history in histories))} of activations",
        f"{sum(verdict.operations_checked for verdict in verdicts):,} operations checked",
        f"{sum(verdict.edges_checked for verdict in verdicts):,} edges",
        duration(sum(report.seconds for report in models)),
    ]
