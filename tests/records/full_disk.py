"""Calls each function that writes a whole file, under a limit on file sizes that acts like a full disk.

``python -m tests.records.full_disk FOLDER`` prints, as JSON by writer, the error and the partial files that are left.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from pytest_torchlens import log_forward_pass
from pytest_torchlens.baseline.saved_activations import save_activations
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.take_snapshot import take
from pytest_torchlens.capture.tensor_files import TensorWriter
from pytest_torchlens.draw.drawing import write_drawing
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.plugin.results import ReportFolder
from pytest_torchlens.recorder.worker.tables import COLUMNS
from pytest_torchlens.recorder.worker.tables import to_parquet
from pytest_torchlens.records import Environment
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import write_atomically
from pytest_torchlens.report import ResultTable
from pytest_torchlens.run import find_environment

LIMIT = 2_000
UNLIMITED = resource.RLIM_INFINITY
NOTES = (os.urandom(4_000).hex(),)


MODEL = nn.Sequential(nn.Linear(50, 50), *(nn.ReLU() for _ in range(20))).eval()


def a_pass() -> ModelHistory:
    return log_forward_pass(MODEL, torch.rand(20, 50))


def activations(folder: Path) -> None:
    history = a_pass()
    save_activations(folder, history, take(history, find_environment()))


def parquet(folder: Path) -> None:
    lines = [COLUMNS, *(("loss", "scalar", n, n, 1, *[0] * (len(COLUMNS) - 5)) for n in range(9_000))]
    source = folder / "series.csv"
    resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    with source.open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, UNLIMITED))
    to_parquet(source)


def streamed(folder: Path) -> None:
    writer = TensorWriter(folder)
    writer.write("x", torch.rand(5_000))
    writer.flush()


WRITERS = {
    "text": lambda folder: write_atomically(folder / "a.txt", "x" * 9_000),
    "baseline": lambda folder: _store(folder).accept("net", take(a_pass(), find_environment())),
    "pending": lambda folder: _store(folder).keep("net", take(a_pass(), find_environment())),
    "results": lambda folder: ReportFolder(folder, {}).write(ModelReport(zoo="a", name="b", notes=NOTES)),
    "table": lambda folder: [
        ResultTable(folder / "t.csv").add(ModelReport(zoo="a", name=str(n), notes=("x" * 300,)), Environment())
        for n in range(9)
    ],
    "drawing": lambda folder: write_drawing("digraph {}" + " " * 9_000, folder / "a.dot"),
    "activations": activations,
    "history": lambda folder: a_pass().save(folder / "run"),
    "parquet": parquet,
    "streamed": streamed,
}


def _store(folder: Path) -> Store:
    return Store(folder / "lens_baselines", folder / ".lens" / "pending")


def on_full_disk(write: Callable[[Path], object], folder: Path) -> tuple[str, list[str]]:
    """Return the error and the partial files."""
    folder.mkdir(parents=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, UNLIMITED))
    try:
        write(folder)
        error = ""
    except Exception as raised:  # noqa: BLE001 - each writer has an error of its own
        error = f"{type(raised).__name__}: {raised}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    return error, [path.name for path in folder.rglob("*") if path.name.endswith(".part")]


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    found = {name: on_full_disk(write, Path(sys.argv[1]) / name) for name, write in WRITERS.items()}
    sys.stdout.write(json.dumps(found))
