"""Whether operations' times add up to the plain forward pass: `python -m benchmarks.times [--cpu] [NAME]`.

With ``--cpu`` every clock is the thread's own CPU time, which other programs on the machine do not change.
"""

from __future__ import annotations

import sys
import time
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


def main(names: tuple[str, ...]) -> None:
    """Measure models at batch 1 in one thread, and print their times."""
    torch.set_num_threads(1)
    print(tabulate(map(_row, names), headers=COLUMNS, floatfmt=("", ".1f", ".1f", ".1f", ".3f")))


def _row(name: str) -> tuple[str, float, float, float, float]:
    model = torchvision.models.get_model(name).eval()
    with torch.no_grad():
        cost = measure_forward_pass(model, torch.rand(1, 3, 224, 224), passes=PASSES)
    plain, spread = cost.forward_seconds or 0.0, cost.forward_spread or 0.0
    return name, plain * 1e3, spread * 1e3, cost.seconds * 1e3, cost.seconds / plain


if __name__ == "__main__":
    asked = [name for name in sys.argv[1:] if name != "--cpu"]
    if "--cpu" in sys.argv:
        mock.patch.object(function_tracer, "perf_counter_ns", time.thread_time_ns).start()
        mock.patch.object(times, "perf_counter_ns", time.thread_time_ns).start()
        mock.patch.object(times, "clock", time.thread_time).start()
    main(tuple(asked) or MODELS)
