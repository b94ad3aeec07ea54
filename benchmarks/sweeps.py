"""Measures what an edit of a sweep costs beside a pass with a hook: `python -m benchmarks.sweeps`."""

from __future__ import annotations

from time import process_time
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from benchmarks.table import environment
from pytest_torchlens import ModelHistory
from pytest_torchlens import log_forward_pass
from pytest_torchlens.edit import Part

EDITS = 1000
PASSES = 40


def model() -> tuple[nn.Module, torch.Tensor, str]:
    """Return resnet18, an input, and the module with which its last quarter begins."""
    from torchvision.models import resnet18

    return resnet18().eval(), torch.rand(1, 3, 224, 224), "layer4.0.conv1"


def hooked_seconds(net: nn.Module, x: torch.Tensor, module: str) -> float:
    """Return the CPU seconds of a pass in which a hook changes a channel."""
    handle = net.get_submodule(module).register_forward_hook(_without_a_channel)
    begun = process_time()
    for _ in range(PASSES):
        net(x)
    handle.remove()
    return (process_time() - begun) / PASSES


def _without_a_channel(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    changed = output.clone()
    changed[:, 0] = 0
    return changed


def edits(history: ModelHistory, labels: list[str]) -> list[dict[Part, float]]:
    """Return edits of a channel each, at one operation after the other."""
    chosen = [labels[number % len(labels)] for number in range(EDITS)]
    sizes = {label: history[label].tensor_contents.shape[1] for label in labels}  # type: ignore[union-attr]
    return [{Part(label)[:, number % sizes[label]]: 0.0} for number, label in enumerate(chosen)]


def sweep_seconds(history: ModelHistory, given: list[dict[Part, float]], batch: int) -> float:
    """Return the CPU seconds that an edit takes."""
    begun = process_time()
    history.sweep(given, metric=lambda output: output[:, 0], batch=batch)
    return (process_time() - begun) / len(given)


@torch.no_grad()
def main() -> None:
    """Print a table: where the edits are, and whether they run together."""
    net, x, module = model()
    history = log_forward_pass(net, x)
    labels = [label for label in history.layer_labels if not label.startswith("output")]
    quarter = labels[labels.index(history[module].label) :]
    hooked_seconds(net, x, module)
    rows = []
    for name, places in (("spread over it", quarter), ("at its first operation", quarter[:1])):
        for batch in (32, 1):
            passes = hooked_seconds(net, x, module)
            each = sweep_seconds(history, edits(history, places), batch)
            passes = (passes + hooked_seconds(net, x, module)) / 2
            rows.append([name, batch, f"{each * 1e3:.1f} ms", f"{passes * 1e3:.1f} ms", f"{each / passes:.3f}"])
    head = ["edits of channels", "batch", "an edit", "a pass with a hook", "ratio"]
    print(environment())
    print(tabulate(rows, headers=head, tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    main()
