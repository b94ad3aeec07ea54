"""Small models, each with its layers.

A graph is the operations in the order in which they ran, by short label: ``relu_1:2`` is the second pass of the first
ReLU layer, ``relu_1`` the only one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import pytest_torchlens as tl
from tests.models import Function
from tests.models import short_label


@dataclass
class Program:
    """A function or module class, the layers of its operations, and its inputs."""

    code: Any
    layers: str
    inputs: Callable[[], tuple[torch.Tensor, ...]]


class Programs(dict):
    """Programs by name; a decorator adds them."""

    def add(self, layers, inputs=lambda: (torch.rand(1, 4),)):
        def enter(code):
            self[code.__name__] = Program(code, layers, inputs)
            return code

        return enter


def build(code):
    """Return the model of a function or module class."""
    torch.manual_seed(3)
    return code() if isinstance(code, type) else Function(code)


def layers_of(history):
    """Return short labels of the operations in the order in which they ran."""
    return [short_label(op) for op in history if not (op.is_input_layer or op.is_output_layer)]


def trace(model, *inputs):
    """Return the history of a forward pass without gradients."""
    with torch.no_grad():
        return tl.log_forward_pass(model, list(inputs))


class Nested(nn.Module):
    """A model nested in `levels` others."""

    def __init__(self, model, levels):
        super().__init__()
        self.inner = Nested(model, levels - 1) if levels else model

    def forward(self, *args):
        return self.inner(*args)


def an_assert(x):
    """Is defined in this module because pytest rewrites the assertions of test files."""
    assert x.sum() > 0, "it is positive"
    return x + 1


def assertions(x):
    """Is defined in this module for the same reason."""
    assert x.sum() > 0
    torch._assert(x.mean() > 0, "positive")
    return x + 1
