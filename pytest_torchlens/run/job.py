"""What a worker process is told of one model, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.report import Graphs
from pytest_torchlens.run.run import RunOptions
from pytest_torchlens.zoo import load_zoo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchlens.zoo import ModelCase
    from pytest_torchlens.zoo import Zoo

JOBS, ANSWERS = 198, 199
"""File descriptors of a worker's two pipes, where few models look."""
_TUPLES = ("update", "fail_on", "keep")


def pack(case: ModelCase, options: RunOptions) -> dict[str, Any]:
    """Return a job as what JSON can hold.

    Raises
    ------
    ValueError
        If the case comes from no zoo file, which the worker could read.
    """
    if case.file is None:
        raise ValueError(f"{case.zoo}:{case.name} comes from no zoo file, so no other process can build it")
    plain = {field.name: getattr(options, field.name) for field in fields(options)}
    plain["folder"] = options.folder and str(options.folder)
    plain["graphs"] = options.graphs and [str(options.graphs.folder), *options.graphs.settings]
    plain["baseline"] = options.baseline and asdict(options.baseline)
    return {"zoo": str(case.file), "name": case.name, "options": plain}


class Unpacker:
    """Reads jobs; each zoo file once."""

    def __init__(self) -> None:
        self._zoos: dict[str, Zoo] = {}

    def unpack(self, job: Mapping[str, Any]) -> tuple[ModelCase, RunOptions]:
        """Return the model and what is to be done with it."""
        path = job["zoo"]
        if path not in self._zoos:
            self._zoos[path] = load_zoo(Path(path))
        return self._zoos[path].case(job["name"]), _options(job["options"])


def _options(plain: dict[str, Any]) -> RunOptions:
    graphs, folder, parts = plain["graphs"], plain["folder"], plain["parts"]
    plain["graphs"] = graphs and Graphs.of(Path(graphs[0]), graphs[1:])
    plain["folder"] = folder and Path(folder)
    plain["parts"] = parts and tuple(parts)
    baseline = plain["baseline"]
    plain["baseline"] = baseline and Policy(**{**baseline, **{key: tuple(baseline[key]) for key in _TUPLES}})
    return RunOptions(**plain)
