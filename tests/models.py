"""Small models that several test files share."""

from __future__ import annotations

import torch
from torch import nn


class DemoNetwork(nn.Module):
    """The poster's example: modules, functions, a random tensor, a buffer, and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 5)
        self.relu_module = nn.ReLU()
        self.register_buffer("example_buffer", torch.ones(5))

    def forward(self, x):
        x = x + 1
        x = self.relu_module(x)
        x = self.fc(x)
        x = nn.functional.relu(x)
        x = x + torch.randn(x.shape)
        y = x**2
        x = x / y
        return x * self.example_buffer


class SmallConvNet(nn.Module):
    """Convolution, batch norm in training, in-place ReLU, pooling, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        x = x.mean(dim=(2, 3))
        return self.head(self.drop(x))


class Function(nn.Module):
    """A model whose forward is the function given."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class Squared(torch.autograd.Function):
    """A custom autograd function that saves its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class Overwriting(nn.Module):
    """A convolution's output that the ReLU overwrites, as in AlexNet; integers too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.conv(x))
        return y.flatten(1).argmax(1), y


class Views(nn.Module):
    """Two in-place writes through sibling views, then a read of the base."""

    def forward(self, x):
        y = x * 1
        a, b = y[0], y[1]
        a.add_(1)
        b.mul_(2)
        return y * 2


def failures(verdict):
    """Return part, operation and message of each failure."""
    return [(part.name, failure.operation, failure.message) for part in verdict.parts for failure in part.failures]


class RecurrentNetwork(nn.Module):
    """The poster's recurrent example."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(in_features=5, out_features=5)

    def forward(self, x):
        for _ in range(3):
            x = self.fc(x)
            x = x + 1
            x = x * 2
        return x


def short_label(op):
    """Return the short label, with the pass where the layer has several: ``linear_1:2``."""
    return f"{op.layer_label_short}:{op.pass_num}" if op.layer_passes_total > 1 else op.layer_label_short


class DoesMoreEachTime(nn.Module):
    """Runs one more addition in each pass."""

    times = 0

    def forward(self, x):
        self.times += 1
        for _ in range(self.times):
            x = x + 1
        return x
