"""Models, loops and files for the tests of the recorder."""

from __future__ import annotations

import csv
from pathlib import Path

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
