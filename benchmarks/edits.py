"""Measures what one edit at a model's first operation costs: `python -m benchmarks.edits [NAME …]`.

nnsight is measured beside where it is installed.  All is CPU time of one thread, in interleaved rounds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from benchmarks.table import environment
from pytest_torchlens import log_forward_pass

MODELS = ("resnet18", "resnet50")
ROUNDS = 15
FIRST, KEY = "conv1", "conv2d_1_1"


def halved(tensor: torch.Tensor) -> torch.Tensor:
    """Return what the edit puts in the place of the first operation's result."""
    return tensor * 0.5


def ways(model: nn.Module, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Return what is measured, by name: a plain pass, and the same edit in several ways."""
    every, few = (log_forward_pass(model, x, layers_to_save=keys) for keys in ("all", [KEY]))
    found: dict[str, Callable[[], object]] = {
        "plain": lambda: model(x),
        "hook": lambda: _hooked(model, x),
        "replay, all kept": lambda: every.edit({KEY: halved}),
        "replay, one kept": lambda: few.edit({KEY: halved}),
        "live, all kept": lambda: every.edit({KEY: halved}, live=True),
    }
    return found


def _hooked(model: nn.Module, x: torch.Tensor) -> object:
    handle = model.get_submodule(FIRST).register_forward_hook(lambda module, inputs, output: halved(output))
    try:
        return model(x)
    finally:
        handle.remove()


def nnsight_way(model: nn.Module, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Return the edit with nnsight, which changes the model that it is given; nothing where it is not installed."""
    try:
        from nnsight import NNsight
    except ImportError:
        return {}
    traced: Any = NNsight(model)

    def edited() -> object:
        with traced.trace(x):
            traced.conv1.output = halved(traced.conv1.output)
            output = traced.output.save()
        return output  # noqa: RET504 - nnsight runs the block above by itself, from its source

    return {"nnsight": edited}


def row(name: str) -> dict[str, str]:
    """Return the medians for one model, in plain passes."""
    from torchvision.models import get_model

    x = torch.rand(1, 3, 224, 224)
    measured = ways(get_model(name).eval(), x) | nnsight_way(get_model(name).eval(), x)
    seconds: dict[str, list[float]] = {way: [] for way in measured}
    for _ in range(ROUNDS):
        for way, run in measured.items():
            begun = process_time()
            run()
            seconds[way].append(process_time() - begun)
    plain = statistics.median(seconds.pop("plain"))
    return {"model": name, "plain, ms": f"{plain * 1e3:.0f}"} | {
        way: f"{statistics.median(each) / plain:.2f}" for way, each in seconds.items()
    }


@torch.no_grad()
def main(names: list[str]) -> None:
    """Print a table: a row for each model of torchvision."""
    torch.set_num_threads(1)
    print(environment())
    print(tabulate([row(name) for name in names or MODELS], headers="keys", tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    main(sys.argv[1:])
