"""Calls each function that writes a whole file, under a limit on file sizes that acts like a full disk.

``python -m tests.records.full_disk FOLDER`` prints, as JSON by writer, the error and the files that changed or are new.
Each writer is a generator: it prepares its folder, yields, and then writes what does not fit.
"""

from __future__ import annotations

import csv
import json
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from pytest_torchlens import log_forward_pass
from pytest_torchlens.baseline.saved_activations import save_activations
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.take_snapshot import take
from pytest_torchlens.capture.tensor_files import TensorWriter
from pytest_torchlens.draw.drawing import write_drawing
from pytest_torchlens.plugin.results import ReportFolder
from pytest_torchlens.recorder.worker.tables import COLUMNS
from pytest_torchlens.recorder.worker.tables import to_parquet
from pytest_torchlens.records import Environment
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import write_atomically
from pytest_torchlens.report import ResultTable
from pytest_torchlens.run import find_environment

LIMIT = 1_000
UNLIMITED = resource.RLIM_INFINITY
MODEL = nn.Sequential(*(nn.Linear(50, 50) for _ in range(9))).eval()
SMALL = MODEL[:1]
X = torch.rand(20, 50)
NOTES = tuple(map(str, torch.rand(LIMIT).tolist()))
Writer = Iterator[None]


def text(folder: Path) -> Writer:
    write_atomically(folder / "a.txt", "old")
    yield
    write_atomically(folder / "a.txt", "new" * LIMIT)


def baseline(folder: Path) -> Writer:
    store = Store(folder / "lens_baselines", folder / ".lens" / "pending")
    store.accept("net", take(log_forward_pass(SMALL, X), find_environment()))
    snapshot = take(log_forward_pass(MODEL, X), find_environment())
    yield
    store.accept("net", snapshot)


def pending(folder: Path) -> Writer:
    store = Store(folder / "lens_baselines", folder / ".lens" / "pending")
    store.keep("net", take(log_forward_pass(SMALL, X), find_environment()))
    snapshot = take(log_forward_pass(MODEL, X), find_environment())
    yield
    store.keep("net", snapshot)


def results(folder: Path) -> Writer:
    reports = ReportFolder(folder, {})
    reports.write(ModelReport(zoo="a", name="b"))
    yield
    reports.write(ModelReport(zoo="a", name="b", notes=NOTES))
    raise OSError(reports.read("").unwritten[0])  # it stays in memory for the run's end


def results_table(folder: Path) -> Writer:
    table = ResultTable(folder / "t.csv")
    table.add(ModelReport(zoo="a", name="b"), Environment())
    yield
    table.add(ModelReport(zoo="a", name="c", inputs=NOTES), Environment())


def drawing(folder: Path) -> Writer:
    write_drawing("digraph {}", folder / "a.dot")
    yield
    write_drawing("digraph {}" + " " * LIMIT, folder / "a.dot")


def activations(folder: Path) -> Writer:
    history = log_forward_pass(MODEL, X)
    snapshot = take(history, find_environment())
    yield
    save_activations(folder, history, snapshot)


def history(folder: Path) -> Writer:
    found = log_forward_pass(MODEL, X)
    yield
    found.save(folder)


def parquet(folder: Path) -> Writer:
    numbers = torch.arange(LIMIT * len(COLUMNS)).reshape(LIMIT, -1)[:, 2:].tolist()
    with (folder / "series.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *(("loss", "scalar", *row) for row in numbers)])
    yield
    to_parquet(folder / "series.csv")


def streamed_activations(folder: Path) -> Writer:
    writer = TensorWriter(folder)
    writer.write("x", torch.rand(LIMIT))
    yield
    writer.flush()


def unselected_activations(folder: Path) -> Writer:
    writer = TensorWriter(folder)
    writer.write("x", torch.rand(LIMIT))
    writer.write("y", torch.rand(LIMIT))
    writer.flush()
    yield
    try:
        writer.keep_only({"x"})
    finally:
        assert writer.names == {"x", "y"}


WRITERS = (
    *(text, baseline, pending, results, results_table, drawing, activations, history, parquet),
    *(streamed_activations, unselected_activations),
)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def error_on_full_disk(writer: Writer) -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, UNLIMITED))
    try:
        next(writer, None)
    except Exception as error:  # noqa: BLE001 - each writer has an error of its own
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    return ""


def outcome(write, folder: Path) -> tuple[str, list[str]]:
    """Return the error, and the files that are not as they were before."""
    folder.mkdir(parents=True)
    writer = write(folder)
    next(writer)
    before = contents(folder)
    error, after = error_on_full_disk(writer), contents(folder)
    return error, sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    found = {write.__name__: outcome(write, Path(sys.argv[1]) / write.__name__) for write in WRITERS}
    sys.stdout.write(json.dumps(found))
