"""Compares the sum of the operations' times with the plain forward pass: `python -m benchmarks.times [--cpu] [NAME]`.

With ``--cpu`` every clock is the thread's own CPU time, which other programs on the machine do not change.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from unittest import mock

import torch
import torchvision
from tabulate import tabulate

from pytest_torchlens import measure_forward_pass
from pytest_torchlens.capture import function_tracer
from pytest_torchlens.measure import times

MODELS = ("resnet50", "vit_b_16")
PASSES = 7
COLUMNS = ("model", "plain ms", "spread ms", "operations ms", "ratio")


def main() -> None:
    """Measure models at batch 1 in one thread, and print their times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.times", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("names", nargs="*", metavar="NAME", default=MODELS, help="A model of torchvision")
    parser.add_argument("--cpu", action="store_true", help="Measure the thread's CPU time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clocks: AbstractContextManager[None] = _cpu_clocks() if options.cpu else contextlib.nullcontext()
    with clocks:
        rows = [_row(name) for name in options.names]
    print(tabulate(rows, headers=COLUMNS, floatfmt=("", ".1f", ".1f", ".1f", ".3f")))


@contextlib.contextmanager
def _cpu_clocks() -> Iterator[None]:
    """Let every clock of the package return the thread's CPU time."""
    with (
        mock.patch.object(function_tracer, "perf_counter_ns", time.thread_time_ns),
        mock.patch.object(times, "perf_counter_ns", time.thread_time_ns),
        mock.patch.object(times, "clock", time.thread_time),
    ):
        times.overhead_seconds.cache_clear()
        yield
    times.overhead_seconds.cache_clear()


def _row(name: str) -> tuple[str, float, float, float, float]:
    model = torchvision.models.get_model(name).eval()
    with torch.no_grad():
        cost = measure_forward_pass(model, torch.rand(1, 3, 224, 224), passes=PASSES)
    plain, spread = cost.forward_seconds or 0.0, cost.forward_spread or 0.0
    return name, plain * 1e3, spread * 1e3, cost.seconds * 1e3, cost.seconds / plain


if __name__ == "__main__":
    main()
