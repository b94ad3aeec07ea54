"""Modules called once or several times, and feed-forward models that look like loops."""

from __future__ import annotations

import torch
from torch import nn

from tests.history.loop_programs import Programs

PROGRAMS = Programs()


@PROGRAMS.add("relu_1 relu_2")
class TwoActivations(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.ReLU(), nn.ReLU()

    def forward(self, x):
        return self.second(self.first(x))


@PROGRAMS.add("relu_1:1 relu_1:2")
class OneActivationTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.act(x))


@PROGRAMS.add("relu_1 relu_2 relu_3")
class ActivationsInALoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.acts = nn.ModuleList(nn.ReLU() for _ in range(3))

    def forward(self, x):
        for act in self.acts:
            x = act(x)
        return x


@PROGRAMS.add("relu_1 relu_2")
class ActivationsNotRegistered(nn.Module):
    def forward(self, x):
        x = nn.ReLU()(x)
        return nn.ReLU()(x)


@PROGRAMS.add("linear_1 relu_1 linear_2 relu_2")
class ActivationSharedByLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.two(self.act(self.one(x))))


@PROGRAMS.add("linear_1 add_1 linear_2 add_2")
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = x + self.a(x)
        return h + self.b(h)


@PROGRAMS.add("linear_1 add_1 linear_2 add_2 linear_3 add_3")
class ResidualsInALoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@PROGRAMS.add("linear_1 add_1 linear_2 add_2 linear_3 add_3")
class SumOfBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        total = 0
        for layer in self.layers:
            total = total + layer(x)
        return total


@PROGRAMS.add("linear_1 linear_2 relu_1 add_1 linear_3 relu_2 add_2 linear_4 relu_3 add_3")
class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        last = self.layers[0](x)
        for layer in self.layers[1:]:
            beside = layer(x)
            last = beside + torch.relu(last)
        return last


@PROGRAMS.add("linear_1:1 add_1:1 linear_2:1 add_2:1 linear_1:2 add_1:2 linear_2:2 add_2:2")
class StackRunTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for _ in range(2):
            for layer in self.layers:
                x = x + layer(x)
        return x
