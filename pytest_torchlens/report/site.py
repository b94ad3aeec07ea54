"""The report's folder: one index, one page a model, and the records they are made from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_torchlens.records import to_json
from pytest_torchlens.report.files import write_file
from pytest_torchlens.report.paths import page_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import RunReport
    from pytest_torchlens.report.pages import Pages


def write_site(run: RunReport, folder: Path) -> list[Path]:
    """Write ``report.json``, ``index.html``, and a page and a record for each model.

    Files of the same names are overwritten, each whole; whatever else is in the folder stays.  A model is
    known by its zoo and its name: of two reports of one model the later stays.

    Parameters
    ----------
    run
        The run.  Where a model's ``graph`` names a file in `folder`, its page shows it.
    folder
        Made where it does not exist.

    Returns
    -------
    list[Path]
        What was written: ``index.html`` first.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    # Here, for a run that writes no report to do without jinja2.
    from pytest_torchlens.report.pages import Pages

    pages = Pages(run)
    models = {page_path(report): report for report in run.models}
    head = [
        write_file(folder / "index.html", pages.index()),
        write_file(folder / "report.json", _run_file(run)),
    ]
    return [*head, *(path for report in models.values() for path in _write_model(report, pages, folder))]


def _write_model(report: ModelReport, pages: Pages, folder: Path) -> Iterator[Path]:
    path = folder / page_path(report)
    yield write_file(path, pages.model(report, _drawing(report, folder)))
    yield write_file(path.with_suffix(".json"), to_json(report))


def _drawing(report: ModelReport, folder: Path) -> bytes | None:
    path = folder / report.graph
    return path.read_bytes() if report.graph and path.is_file() else None


def _run_file(run: RunReport) -> str:
    brief = replace(run, models=tuple(map(_brief, run.models)))
    # `to_json` leaves defaults out, and a program must find the schema.
    return json.dumps({"schema": run.schema} | json.loads(to_json(brief)), indent=1)


def _brief(report: ModelReport) -> ModelReport:
    """Leave out what is long: it is in the model's own file."""
    if report.history is None:
        return report
    history = replace(report.history, operations=(), modules=(), layer_list=())
    return replace(report, history=history)
