"""Small models to edit."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor
from torch import nn


class Branches(nn.Module):
    """A branch that leads nowhere, one that a rectifier swallows, and one that reaches an output."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        torch.sigmoid(x).add(1)
        y = self.fc(x)
        return torch.relu(y - 100) + 1, y * x


class Loop(nn.Module):
    """The same layer, as often as asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x: Tensor, times: int = 3) -> Tensor:
        for _ in range(times):
            x = torch.tanh(self.cell(x))
        return x.sum(0)


class Signed(nn.Module):
    """Python decides on a value which operation runs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x).abs()
        y = y.sin().cos() if y.sum() > 0 else y + 1
        return torch.tanh(y)


def residual() -> nn.Module:
    """Return blocks that are alike, in a row."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)))


class Strict(OrderedDict):  # type: ignore[type-arg]
    """A dict that refuses `update`, as the outputs of transformers do."""

    def update(self, *_: object, **__: object) -> None:
        raise TypeError("no update")


class Held:
    """An object with a tensor, as a cache of keys and values is one."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Bundles(nn.Module):
    """Returns tensors in an object, a dict of another class, and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Strict:
        y = self.fc(x)
        return Strict(first=y + 1, held=Held(y + 2), others=[y + 3, x + 4])
