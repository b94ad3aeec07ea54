"""The records of runs that have ended, and pages made from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pytest_torchlens.records import SCHEMA
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import RunPart
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import from_json
from pytest_torchlens.report.drawings import save_drawing
from pytest_torchlens.report.files import write_file
from pytest_torchlens.report.paths import drawing_path
from pytest_torchlens.report.paths import page_path
from pytest_torchlens.report.paths import views_path
from pytest_torchlens.report.site import write_site

RUN_FILE = "report.json"

T = TypeVar("T")


class RunFolderError(Exception):
    """Records that cannot be read; the message names the file, the reason and the fix."""


@dataclass(frozen=True)
class RunFolder:
    """A run's records on disk, or those of several runs as one; models are read one at a time."""

    path: Path
    run: RunReport
    """Its models are brief: without operations and modules."""
    sources: dict[str, Path]
    """By path of a model's page: the folder that its record is in."""
    replaced: tuple[str, ...] = ()
    """A line for each model that another run had, too."""

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
            If there is none, it is damaged, or another version's.
        """
        file = path / RUN_FILE if path.is_dir() else path
        run = _read(file, RunReport)
        return cls(file.parent, run, dict.fromkeys(map(_key, run.models), file.parent))

    @classmethod
    def joined(cls, folders: Sequence[RunFolder]) -> RunFolder:
        """Return several runs as one; of a model that several have, the last one's report is kept."""
        models: dict[str, ModelReport] = {}
        sources: dict[str, Path] = {}
        replaced: list[str] = []
        for folder in folders:
            for model in folder.run.models:
                if (key := _key(model)) in sources:
                    replaced.append(f"{model.zoo}:{model.name} is in {sources[key]} too; that of {folder.path} is kept")
                models[key], sources[key] = model, folder.sources[key]
        parts = tuple(part for folder in folders for part in _parts(folder.run))
        run = replace(folders[0].run, models=tuple(models.values()), parts=parts if len(parts) > 1 else ())
        return cls(folders[0].path, run, sources, tuple(replaced))

    def write_site(self, folder: Path) -> tuple[Path, list[str]]:
        """Write pages, records and drawings into a folder.

        Returns
        -------
        tuple[Path, list[str]]
            The index, and what could not be read of which model: its page has what ``report.json`` knows, and says so.

        Raises
        ------
        OSError
            If a file cannot be written.
        """
        for model in self.run.models:
            for path in (drawing_path(model), views_path(model)):
                drawing = self.sources[_key(model)] / path
                if drawing.is_file() and drawing.resolve() != (folder / path).resolve():
                    write_file(folder / path, drawing.read_bytes())
        troubles: list[str] = []
        drawn = (self._drawn(self._whole(model, troubles), folder) for model in self.run.models)
        return write_site(self.run, drawn, folder)[0], troubles

    def _whole(self, model: ModelReport, troubles: list[str]) -> ModelReport:
        """Return a model's whole report; the brief one, with a note, where its file is damaged or not there."""
        file = (self.sources[_key(model)] / page_path(model)).with_suffix(".json")
        try:
            return _read(file, ModelReport)
        except RunFolderError as error:
            troubles.append(f"{model.zoo}:{model.name}: {error}")
            return replace(model, notes=(*model.notes, f"no layers and no modules are known: {error}"))

    @staticmethod
    def _drawn(model: ModelReport, folder: Path) -> ModelReport:
        """Draw a model anew if its drawings are not there."""
        is_there = all((folder / path).is_file() for path in (drawing_path(model), views_path(model)))
        can_be = model.graph and model.history and model.history.operations
        return save_drawing(model, folder) if can_be and not is_there else model


def _key(model: ModelReport) -> str:
    return str(page_path(model))


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
        raise RunFolderError(f"{file} is not there; name a folder that pytest --lens-report=DIR has written") from None
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{file} is no record of a run, or is damaged ({error}); write the report anew") from None


def _check_run(file: Path, content: object) -> None:
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise RunFolderError(
            f"{file} has schema {schema}, and this version reads {SCHEMA}: install a newer pytest-torchlens"
        )
    if isinstance(content, dict) and "models" not in content:
        raise ValueError("it has no 'models'")
