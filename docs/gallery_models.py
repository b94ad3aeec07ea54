"""The models of the gallery: those of the paper's figures 2 and 3."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn


class DemoNetwork(nn.Module):
    """Figure 2A: modules, functions, a tensor made inside, a buffer, a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(in_features=5, out_features=5)
        self.relu_module = nn.ReLU()
        self.register_buffer("example_buffer", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        x = self.relu_module(x)
        x = self.fc(x)
        x = nn.functional.relu(x)
        x = x + torch.randn(x.shape)
        y = x**2
        x = x / y
        return x * self.example_buffer


class RecurrentNetwork(nn.Module):
    """The poster's loop of three operations, three times over."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(in_features=5, out_features=5)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.fc(x)
            x = x + 1
            x = x * 2
        return x


class Submodule2(nn.Module):
    """The inner module of figure 2C."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 2
        w = torch.cos(x)
        y = torch.sin(x)
        z = torch.tan(x)
        return w + y + z


class Submodule1(nn.Module):
    """The outer module of figure 2C."""

    def __init__(self) -> None:
        super().__init__()
        self.submodule2 = Submodule2()

    def forward(self, x: Tensor) -> Tensor:
        x = x + 3
        x = self.submodule2(x)
        return x * 4


class NetworkOrganizationDemo(nn.Module):
    """Figures 2C and 2F: nested modules, branches, a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.submodule1 = Submodule1()

    def forward(self, x: Tensor) -> Tensor:
        if torch.sum(x) > 0:  # noqa: SIM108 - as the poster has it
            x = x * 2
        else:
            x = x + 1
        w = 1 / x
        y = torch.log(x)
        z = x**2
        x = w + y + z
        x = self.submodule1(x)
        x = x + 1
        return x * 2


class Figure3A(nn.Module):
    """Shared parameters, and equal operations beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cos(x)
        x = self.fc(x)
        x = x + 1
        x = torch.sin(x)
        x = torch.cos(x)
        x = self.fc(x)
        return x + 1


class Figure3B(nn.Module):
    """A sequence that repeats back to back, and once more further on."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cos(x)
        x = torch.relu(x)
        x = x * 2
        x = torch.cos(x)
        x = torch.relu(x)
        x = x * 2
        x = torch.tan(x)
        x = torch.cos(x)
        x = torch.relu(x)
        return x * 2


class Block(nn.Module):
    """A residual block with an activation of one's choice."""

    def __init__(self, channels: int, act: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.norm(self.conv(x)))


def net(act: nn.Module, *extra: nn.Module, classes: int) -> nn.Sequential:
    """Return a small network of blocks."""
    blocks = [Block(4, nn.ReLU()), Block(4, act), Block(4, nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, 4, 3), *blocks, *extra, nn.Flatten(), nn.Linear(144, classes)).eval()
