"""Models, loops and files for the tests of the recorder."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_torchlens.recorder import Recorder


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def train(model: nn.Module, steps: int, recorder: Recorder | None = None, lr: float = 0.05) -> list[float]:
    """Fit ones to zeros by plain gradient descent; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if recorder:
            recorder.step(loss=loss)
        losses.append(loss.item())
    return losses


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "series.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def frames(path: Path) -> list[torch.Tensor]:
    """Return the decoded frames of a video, height × width × 3."""
    import av

    with av.open(str(path)) as file:
        return [torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]


PATIENCE = 600
"""Seconds that a test waits for another process, however busy the machine is."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen in {PATIENCE} s")
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process is there, and no mere entry in the table of processes."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def shared_memory() -> set[str]:
    """Return the rings that this process has in its memory or holds open, by their inodes."""
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    opened = {str(file.stat().st_ino) for file in Path("/proc/self/fd").iterdir() if "lens-recorder" in _target(file)}
    return opened | {line.split()[4] for line in mapped if "lens-recorder" in line}


def processes_with(variable: str) -> set[int]:
    """Return the processes, other than this one, that were started with a variable in their environment."""
    return {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if variable in _environment(path)}


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _environment(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
