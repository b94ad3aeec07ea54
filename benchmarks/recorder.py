"""Measures what recording costs a training step: ``python -m benchmarks.recorder [MODEL...]``.

Two equal models are trained in one process, with alternating steps; only one of them is recorded.  The table compares
the CPU time of the training process, which other programs on the machine disturb least, and the time on the clock.  The
CPU time of the recorder process is a column of its own.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pytest_torchlens.recorder import Recorder

Track = Callable[[Recorder, nn.Module], None]


def _everything(recorder: Recorder, model: nn.Module) -> None:
    recorder.track_model(model)
    recorder.track_layers(model)
    recorder.track_parameters(model)


def _expected(recorder: Recorder, model: nn.Module) -> None:
    _everything(recorder, model)
    recorder.expect(no_nan=True, grad_norm="<1e9")


def _seven_layers(recorder: Recorder, model: nn.Module) -> None:
    leaves = [path for path, module in model.named_modules() if not any(module.children())]
    recorder.track_layers(model, leaves[:: max(1, len(leaves) // 7)][:7], gradients=False)


CASES: dict[str, tuple[dict[str, Any], bool, Track]] = {
    "default: all layers and parameters, every 10th step": ({}, True, _everything),
    "the same, without files": ({}, False, _everything),
    "the same, and no_nan, grad_norm looked at in each step": ({}, False, _expected),
    "7 layers, each step, with videos": ({"every": 1}, True, _seven_layers),
}


def trainer(name: str, batch: int) -> tuple[nn.Module, Callable[[], None]]:
    """Return a model of torchvision, and a function that runs one step of its training."""
    import torchvision

    torch.manual_seed(0)
    model = getattr(torchvision.models, name)()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, classes = torch.randn(batch, 3, 224, 224), torch.arange(batch)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return model, step


def timed(step: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds that a step takes: CPU time of this process, and time on the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    return time.process_time() - cpu, time.perf_counter() - wall


def measure(name: str, case: str, steps: int, batch: int) -> str:
    """Return a row of the table."""
    options, has_files, track = CASES[case]
    (_, plain), (model, recorded) = trainer(name, batch), trainer(name, batch)
    before = _seconds_of_children()
    with tempfile.TemporaryDirectory() as folder, Recorder(folder if has_files else None, **options) as recorder:
        track(recorder, model)
        for step in (plain, recorded):
            timed(step)
        pairs = [(timed(plain), timed(recorded)) for _ in range(steps)]
    worker_seconds = _seconds_of_children() - before
    cpu, wall = (sum(pair[1][kind] for pair in pairs) / sum(pair[0][kind] for pair in pairs) for kind in (0, 1))
    plain_seconds = sum(pair[0][0] for pair in pairs) / steps
    seen, dropped = (sum(getattr(one, what) for one in recorder.report.values()) for what in ("seen", "dropped"))
    return (
        f"| {name} | {case} | {plain_seconds * 1e3:.0f} ms | {cpu:.3f} | {wall:.2f} | "
        f"{max(worker_seconds, 0.0) / steps / plain_seconds:.2f} | {seen:,} | {dropped:,} |"
    )


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["alexnet", "resnet18"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--case", type=int, choices=range(len(CASES)), action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | recorded | plain step (CPU) | CPU | clock | process beside | frames | dropped |")
    print("|:--|:--|--:|--:|--:|--:|--:|--:|")
    for name in arguments.models:
        for number in arguments.case or range(len(CASES)):
            print(measure(name, list(CASES)[number], arguments.steps, arguments.batch), flush=True)


if __name__ == "__main__":
    main()
