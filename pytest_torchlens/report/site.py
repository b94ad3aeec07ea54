"""The report's folder: one index, one page a model, and the records they are made from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_torchlens.records import to_json
from pytest_torchlens.report.drawings import read_views
from pytest_torchlens.report.files import write_file
from pytest_torchlens.report.paths import page_path
from pytest_torchlens.report.schema import SCHEMA_FILE
from pytest_torchlens.report.training import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import RunReport
    from pytest_torchlens.report.pages import Pages


def write_site(run: RunReport, models: Iterable[ModelReport], folder: Path) -> list[Path]:
    """Write ``report.json``, ``index.html``, and a page and a record for each model.

    Files of the same names are overwritten, each whole; whatever else is in the folder stays.  A model is
    known by its zoo and its name: of two reports of one model the later stays.

    Parameters
    ----------
    run
        The run; brief reports of its models will do.
    models
        The whole reports, each asked for when its page is made: thousands need no memory at once.  Where a drawing
        lies in `folder` already, a page shows it.
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

    run = replace(run, models=tuple({page_path(report): report.brief() for report in run.models}.values()))
    pages = Pages(run)
    head = [
        write_file(folder / "index.html", pages.index(has_training=(folder / FOLDER / "index.html").is_file())),
        write_file(folder / "report.json", to_json(run)),
        write_file(folder / SCHEMA_FILE.name, SCHEMA_FILE.read_bytes()),
    ]
    written = {path: None for report in models for path in _write_model(report, pages, folder)}
    return [*head, *written]


def _write_model(report: ModelReport, pages: Pages, folder: Path) -> Iterator[Path]:
    path = folder / page_path(report)
    views, trouble = read_views(report, folder)
    yield write_file(path, pages.model(replace(report, notes=(*report.notes, *filter(None, [trouble]))), views))
    if not report.is_brief:
        yield write_file(path.with_suffix(".json"), to_json(report))
