"""Extracts into a folder in child processes that are killed at random times, until one comes to its end.

Called with a folder, seeds and the number of kills.  It makes ``whole`` in the folder, without a kill, and one for each
seed; prints how many shards each process found.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from pytest_torchlens.extraction import extract


class Slow(torch.nn.Module):
    """A model that takes a millisecond for each example, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, x):
        time.sleep(len(x) / 1000)
        return (x @ self.weight).relu() + torch.rand(1)


def batches():
    """Batches of several sizes and lengths."""
    numbers = torch.linspace(0, 1, 4 * 9 * 3 * 12).reshape(12, 4, 9, 3)
    return [batch[: 1 + place % 4, : 5 + place % 3] for place, batch in enumerate(numbers)]


def run(folder: Path) -> None:
    """Extract; every shard has two or three batches."""
    extract(Slow(), batches(), ["relu_1", "output_1"], folder, random_seed=5, shard_bytes=700)


def kill_often(folder: Path, chance: random.Random, kills: int, longest: float) -> None:
    """Start processes, and kill each but the last at a random time."""
    for attempt in range(kills + 1):
        sys.stdout.write(f"{len(list(folder.glob('shard-*')))} ")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            run(folder)
            os._exit(0)
        if attempt < kills:
            time.sleep(chance.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main() -> None:
    """Run once without a kill, which shows how long that takes, and then for each seed."""
    folder, kills, *seeds = sys.argv[1:]
    torch.set_num_threads(1)  # a forked process has no other threads
    run(Path(folder, "warm"))
    start = time.perf_counter()
    run(Path(folder, "whole"))
    longest = 0.8 * (time.perf_counter() - start)
    for seed in seeds:
        kill_often(Path(folder, seed), random.Random(seed), int(kills), longest)


if __name__ == "__main__":
    main()
