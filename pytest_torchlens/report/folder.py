"""Writes and reads the report folder: the index, a page and a record for each model, and the list of recordings."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import TypeVar

from pytest_torchlens.records import SCHEMA
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import RunPart
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import from_json
from pytest_torchlens.records import left_out_calls
from pytest_torchlens.records import to_json
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import remove
from pytest_torchlens.report.drawings import read_views
from pytest_torchlens.report.drawings import save_drawing
from pytest_torchlens.report.paths import drawing_path
from pytest_torchlens.report.paths import page_path
from pytest_torchlens.report.paths import views_path
from pytest_torchlens.report.schema import SCHEMA_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator

    from pytest_torchlens.records import LeftOutCalls
    from pytest_torchlens.report.pages import Pages


def write_site(run: RunReport, models: Iterable[ModelReport], folder: Path) -> list[Path]:
    """Write ``report.json``, ``index.html``, and a page and a record for each model.

    Files of the same names are replaced; other files stay.  Zoo and name identify a model; the
    later of two reports of one model is kept.

    Parameters
    ----------
    run
        The run; its model reports may be brief.
    models
        The full reports, consumed one at a time to save memory.  A page shows the model's drawing if `folder` has one.
    folder
        Created if missing.

    Returns
    -------
    list[Path]
        The written files: ``index.html`` first.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    # Imported here, so that a run without a report does not need jinja2.
    from pytest_torchlens.report.pages import Pages

    run = replace(run, models=tuple({page_path(report): report.brief() for report in run.models}.values()))
    pages = Pages(run)
    head = [
        write_atomically(folder / "index.html", pages.index(has_training=(folder / FOLDER / "index.html").is_file())),
        write_atomically(folder / "report.json", to_json(run)),
        write_atomically(folder / SCHEMA_FILE.name, SCHEMA_FILE.read_bytes()),
    ]
    written = {path: None for report in models for path in _write_model(report, pages, folder)}
    return [*head, *written]


def _write_model(report: ModelReport, pages: Pages, folder: Path) -> Iterator[Path]:
    path = folder / page_path(report)
    views, trouble = read_views(report, folder)
    yield write_atomically(path, pages.model(replace(report, notes=(*report.notes, *filter(None, [trouble]))), views))
    if not report.is_brief:
        yield write_atomically(path.with_suffix(".json"), to_json(report))


FOLDER = "training"


def write_training_index(folder: Path, since: float) -> Path | None:
    """Write ``training/index.html``, a link to each recording; return its path.

    Parameters
    ----------
    folder
        The report folder.
    since
        Seconds since the epoch; recordings older than that belong to earlier runs and are not listed.

    Returns
    -------
    Path or None
        None if there are no recordings; an earlier run's list is then removed.
    """
    found = sorted((folder / FOLDER).glob("*/recording-0.json"))
    recent = [path for path in found if path.stat().st_mtime >= since]
    index = folder / FOLDER / "index.html"
    if recent:
        return write_atomically(index, _page([_line(path) for path in recent]))
    remove(index)
    return None


def _line(path: Path) -> str:
    place = html.escape(f"{path.parent.name}/index.html")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        frames = sum(item["frames"] for item in report["items"])
        ended = "" if report["ended"] == "closed" else f", ended: {html.escape(report['ended'])}"
        name = html.escape(report["title"] or path.parent.name)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return f'<li><a href="{place}">{html.escape(path.parent.name)}</a> <small>its record is damaged</small></li>'
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


RUN_FILE = "report.json"

T = TypeVar("T")


class RunFolderError(Exception):
    """Records cannot be read; the message names the file, the reason and the fix."""


@dataclass(frozen=True)
class RunFolder:
    """The records of one run, or of several merged runs, on disk; models are read one at a time."""

    path: Path
    run: RunReport
    """The run; its model reports are brief, without operations and modules."""
    sources: dict[str, Path]
    """The folder of each model's record, by the path of the model's page."""
    replacements: tuple[str, ...] = ()
    """One line for each model that several runs have."""

    @classmethod
    def read(cls, path: Path) -> RunFolder:
        """Read ``report.json`` of a report's folder.

        Parameters
        ----------
        path
            The folder, or the file itself.

        Raises
        ------
        RunFolderError
            If it is missing, damaged, or from a newer version.
        """
        file = path / RUN_FILE if path.is_dir() else path
        run = _read(file, RunReport)
        return cls(file.parent, run, dict.fromkeys(map(_key, run.models), file.parent))

    @classmethod
    def join(cls, folders: Sequence[RunFolder]) -> RunFolder:
        """Merge several runs; if a model is in several, keep its last report."""
        models: dict[str, ModelReport] = {}
        sources: dict[str, Path] = {}
        replacements: list[str] = []
        for folder in folders:
            for model in folder.run.models:
                if (key := _key(model)) in sources:
                    replacements.append(
                        f"{model.zoo}:{model.name} is in {sources[key]} too; that of {folder.path} is kept"
                    )
                models[key], sources[key] = model, folder.sources[key]
        parts = tuple(part for folder in folders for part in _parts(folder.run))
        run = replace(
            folders[0].run,
            models=tuple(models.values()),
            left_out=_left_out(folder.run for folder in folders),
            parts=parts if len(parts) > 1 else (),
        )
        return cls(folders[0].path, run, sources, tuple(replacements))

    def write_site(self, folder: Path) -> tuple[Path, list[str]]:
        """Write pages, records and drawings into a folder.

        Returns
        -------
        tuple[Path, list[str]]
            The index, and a message for each unreadable record; its page shows only the data in ``report.json``.

        Raises
        ------
        OSError
            If a file cannot be written.
        """
        troubles: list[str] = []
        drawn = (self._with_drawing(self._full_report(model, troubles), folder) for model in self.run.models)
        return write_site(self.run, drawn, folder)[0], troubles

    def _full_report(self, model: ModelReport, troubles: list[str]) -> ModelReport:
        """Return a model's full report, or the brief one with a note if its file is damaged or missing."""
        file = (self.sources[_key(model)] / page_path(model)).with_suffix(".json")
        try:
            return _read(file, ModelReport)
        except RunFolderError as error:
            troubles.append(f"{model.zoo}:{model.name}: {error}")
            return replace(model, notes=(*model.notes, f"no layers and no modules are known: {error}"))

    def _with_drawing(self, model: ModelReport, folder: Path) -> ModelReport:
        """Draw a model from its record; never copy drawings from another folder, because an SVG can run code."""
        own = self.sources[_key(model)].resolve() == folder.resolve()
        is_there = own and all((folder / path).is_file() for path in (drawing_path(model), views_path(model)))
        can_be = model.graph and model.history and model.history.operations
        return save_drawing(model, folder) if can_be and not is_there else model


def _key(model: ModelReport) -> str:
    return str(page_path(model))


def _left_out(runs: Iterable[RunReport]) -> tuple[LeftOutCalls, ...]:
    """Return the calls that several runs left out; a test counts as in the last run that has it, or a report of it."""
    tests: dict[str, dict[str, int]] = {}
    for run in runs:
        for model in run.models:
            tests.pop(model.nodeid, None)
        for name in {name for one in run.left_out for name in one.tests}:
            tests[name] = {one.reason: one.tests[name] for one in run.left_out if name in one.tests}
    return left_out_calls((reason, name, count) for name, counts in tests.items() for reason, count in counts.items())


def _parts(run: RunReport) -> tuple[RunPart, ...]:
    own = RunPart(created=run.created, command=run.command, environment=run.environment, num_models=len(run.models))
    return run.parts or (own,)


def _read(file: Path, kind: type[T]) -> T:
    try:
        text = file.read_text(encoding="utf-8")
        if kind is RunReport:
            _check_run(file, json.loads(text))
        return from_json(text, kind)
    except FileNotFoundError:
        raise RunFolderError(
            f"expected a folder that pytest --lens-report=DIR has written, but {file} does not exist"
        ) from None
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"expected the record of a run, got {file}, which is damaged or something else ({error}); write it anew"
        ) from None


def _check_run(file: Path, content: object) -> None:
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise RunFolderError(
            f"expected schema {SCHEMA} or earlier, got {schema} in {file}: install a newer pytest-torchlens"
        )
    if isinstance(content, dict) and "models" not in content:
        raise ValueError("expected the field 'models', got none")
