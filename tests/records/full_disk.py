"""Runs each function that writes whole files on a disk that fills up.

``python -m tests.records.full_disk FOLDER`` prints, as JSON by writer: the error, and the folder's files that changed.
Each writer is a generator: it prepares its folder, yields, and then writes what does not fit.
"""

from __future__ import annotations

import csv
import json
import resource
import sys
from pathlib import Path

import torch
from torch import nn

from pytest_torchlens import log_forward_pass
from pytest_torchlens.baseline.saved_activations import keep
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.take_snapshot import take
from pytest_torchlens.capture.tensor_files import TensorWriter
from pytest_torchlens.draw.drawing import write_drawing
from pytest_torchlens.plugin.results import Gathered
from pytest_torchlens.recorder.worker.tables import COLUMNS
from pytest_torchlens.recorder.worker.tables import to_parquet
from pytest_torchlens.records import Environment
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import write_atomically
from pytest_torchlens.report import ResultTable
from pytest_torchlens.run import find_environment

LIMIT = 1_000
MODEL = nn.Sequential(*(nn.Linear(50, 50) for _ in range(9))).eval()
X = torch.rand(20, 50)


def text(folder):
    write_atomically(folder / "a.txt", "old")
    yield
    write_atomically(folder / "a.txt", "new" * LIMIT)


def baseline(folder):
    store = Store(folder / "lens_baselines", folder / ".lens" / "pending")
    write_atomically(store.path("net"), "old")
    snapshot = take(log_forward_pass(MODEL, X), find_environment())
    yield
    store.accept("net", snapshot)


def pending(folder):
    store = Store(folder / "lens_baselines", folder / ".lens" / "pending")
    store.keep("net", take(log_forward_pass(MODEL[:1], X[:1, :1].expand(1, 50)), find_environment()))
    snapshot = take(log_forward_pass(MODEL, X), find_environment())
    yield
    store.keep("net", snapshot)


def results(folder):
    gathered = Gathered(folder, {})
    gathered.write(ModelReport(zoo="a", name="b"))
    yield
    gathered.write(ModelReport(zoo="a", name="b", notes=tuple(map(str, torch.rand(LIMIT).tolist()))))


def table(folder):
    ResultTable(folder / "t.csv").add(ModelReport(zoo="a", name="b"), Environment())
    yield
    ResultTable(folder / "t.csv").add(ModelReport(zoo="a", name="c", inputs=("x" * 9 * LIMIT,)), Environment())


def drawing(folder):
    write_drawing("digraph {}", folder / "a.dot")
    yield
    write_drawing("digraph {}" + " " * LIMIT, folder / "a.dot")


def activations(folder):
    history = log_forward_pass(MODEL, X)
    snapshot = take(history, find_environment())
    folder.mkdir()
    yield
    keep(folder, history, snapshot)


def history(folder):
    found = log_forward_pass(MODEL, X)
    folder.mkdir()
    yield
    found.save(folder)


def parquet(folder):
    numbers = torch.rand(LIMIT, len(COLUMNS) - 5).tolist()
    folder.mkdir()
    with (folder / "series.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *(("loss", "scalar", n, n, 1, *row) for n, row in enumerate(numbers))])
    yield
    to_parquet(folder / "series.csv")


def streamed(folder):
    writer = TensorWriter(folder)
    writer.write("x", torch.rand(LIMIT))
    yield
    writer.flush()


def thinned(folder):
    writer = TensorWriter(folder)
    writer.write("x", torch.rand(LIMIT))
    writer.write("y", torch.rand(LIMIT))
    writer.flush()
    yield
    writer.keep_only({"x"})


WRITERS = [text, baseline, pending, results, table, drawing, activations, history, parquet, streamed, thinned]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def error_of(steps):
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, unlimited))
    try:
        next(steps, None)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    return ""


def outcome(write, folder):
    steps = write(folder)
    next(steps)
    before = files(folder)
    error, after = error_of(steps), files(folder)
    return error, sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


if __name__ == "__main__":
    print(json.dumps({write.__name__: outcome(write, Path(sys.argv[1], write.__name__)) for write in WRITERS}))
