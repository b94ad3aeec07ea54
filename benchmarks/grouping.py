"""Measures how long it takes to find which operations are passes of one layer: `python -m benchmarks.grouping`."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import process_time

import torch
from tabulate import tabulate
from torch import nn

from benchmarks.table import environment
from pytest_torchlens.capture import record
from pytest_torchlens.capture.process_limits import COLLECTOR
from pytest_torchlens.history.graph import build_nodes
from pytest_torchlens.history.layers.passes import group_passes
from pytest_torchlens.history.operation_records import assign_labels

SIZES = (10_000, 30_000, 100_000)
_FUNCTIONS = (torch.cos, torch.sin, torch.tanh, torch.sigmoid, torch.relu)


class Loop(nn.Module):
    """Ten operations in a loop."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.steps = size // 10

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the loop."""
        for _ in range(self.steps):
            y = torch.sin(torch.cos(x))
            z = torch.tanh(y) * x
            z = torch.relu(z - 1)
            x = torch.sigmoid(z + y) + torch.abs(z)
        return x


class Graph(nn.Module):
    """Random operations, each on one or two of the last fifty results."""

    def __init__(self, size: int) -> None:
        super().__init__()
        rng = random.Random(0)  # noqa: S311 - the same graph each time
        near = [range(max(0, number - 50), number) for number in range(1, size + 1)]
        self.steps = [(rng.randrange(6), rng.choice(of), rng.choice(of)) for of in near]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the steps."""
        values = [x]
        for kind, first, second in self.steps:
            is_sum = kind == len(_FUNCTIONS)
            values.append(values[first] + values[second] if is_sum else _FUNCTIONS[kind](values[first]))
        return values[-1]


class WrittenOut(nn.Module):
    """The same kind of graph, with a separate line of code for each operation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        lines = ["def forward(x):", "    v0 = x"]
        for number, (kind, first, second) in enumerate(Graph(size).steps, 1):
            one = f"v{first} + v{second}" if kind == len(_FUNCTIONS) else f"f[{kind}](v{first})"
            lines.append(f"    v{number} = {one}")
        space = {"f": _FUNCTIONS}
        exec("\n".join([*lines, f"    return v{size}"]), space)  # noqa: S102 - the lines above
        self.run: Callable[[torch.Tensor], torch.Tensor] = space["forward"]  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the lines."""
        return self.run(x)


WORKLOADS = {"loop of 10": Loop, "random graph": Graph, "random graph, written out": WrittenOut}


def seconds(model: nn.Module) -> tuple[float, float, float]:
    """Return the CPU seconds of building the graph, grouping it, and labelling it."""
    with torch.no_grad():
        recording = record(model, (torch.rand(2),))
    marks = [process_time()]
    with COLLECTOR.raised():
        nodes = build_nodes(recording)
        marks.append(process_time())
        layers = group_passes(nodes)
        marks.append(process_time())
        assign_labels(nodes, layers)
        marks.append(process_time())
    return marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2]


def main() -> None:
    """Print a table of all workloads and sizes."""
    rows = []
    for name, make in WORKLOADS.items():
        for size in SIZES:
            graph, grouping, labels = seconds(make(size))
            each = 1e6 * grouping / size
            rows.append([name, f"{size:,}", f"{graph:.2f} s", f"{grouping:.2f} s", f"{labels:.2f} s", f"{each:.0f} µs"])
            print(f"{name}, {size:,} operations: {grouping:.2f} s", flush=True)
    head = ["graph", "operations", "nodes and edges", "grouping", "labels", "grouping, an operation"]
    print(environment())
    print(tabulate(rows, headers=head, tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    main()
