"""Models and batches for tests of extraction, and what a plain loop with hooks gets of them."""

from __future__ import annotations

import torch
from torch import nn


def net() -> nn.Sequential:
    """A small network, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


def batches(examples: int = 11, size: int = 4) -> list[torch.Tensor]:
    """Batches of four numbers an example; the last one is smaller."""
    numbers = torch.linspace(-1, 1, examples * 4).reshape(examples, 4)
    return list(numbers.split(size))


def hooked(model: nn.Module, loader: list[torch.Tensor], address: str) -> torch.Tensor:
    """Return the outputs of a module over all batches, in evaluation mode."""
    seen: list[torch.Tensor] = []
    handle = model.get_submodule(address).register_forward_hook(lambda _, __, out: seen.append(out.clone()))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        for batch in loader:
            model(batch)
    handle.remove()
    for module, training in modes:
        module.training = training
    return torch.cat(seen)


class TwoWays(nn.Module):
    """Runs one layer or the other, as the first number of a batch says; both end in the same one."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        y = self.left(x).sin() if x[0, 0] > 0 else self.right(x)
        return self.head(y)


class EarlyExit(nn.Module):
    """Returns what the first layer gives if there are few examples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        return y if len(x) < 4 else self.second(y)


class Loops(nn.Module):
    """Runs a layer as often as there are pairs of examples."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(len(x) // 2):
            x = self.cell(x).tanh()
        return x


class Rebinds(nn.Module):
    """Has another tensor as its buffer after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls = self.calls + 1
        return x * self.calls


class Attribute(nn.Module):
    """Writes to a tensor that is not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = torch.zeros(1)

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class LazyMask(nn.Module):
    """Registers a buffer in its first call."""

    def forward(self, x):
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(4))
        return x * self.mask


class PythonState(nn.Module):
    """Counts its calls in a Python number."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class DrawsLater(nn.Module):
    """Draws random numbers in batches that do not begin with -1, by another operation or with other arguments."""

    def __init__(self, same_operations: bool) -> None:
        super().__init__()
        self.same_operations = same_operations

    def forward(self, x):
        is_later = x[0, 0].item() != -1
        if self.same_operations:
            return nn.functional.dropout(x, 0.5, training=is_later) + 1
        return x + torch.rand(1) if is_later else x + 1


class Counts(nn.Module):
    """Writes to a buffer, and to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x.mul_(self.calls) * 2
