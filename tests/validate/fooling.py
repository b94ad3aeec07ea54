"""A list of models that try to get a verdict of "passed" by wrong means, each with how it must end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_torchlens.records import Status


@dataclass(frozen=True)
class Fooling:
    """A forward function, or a class of modules, with the status of its verdict and what the verdict says."""

    forward: Any
    status: Status
    says: str


MODELS: dict[str, Fooling] = {}
"""The models by name."""
DOCUMENTED: dict[str, str] = {}
"""The models that the documentation names, each with its entry there."""
CALLS: Counter[str] = Counter()
"""Calls of each model in this test; a global, which no restored state of a model covers."""
KEPT: list[Any] = []
"""What models keep from one call to the next."""


def nth_call(name: str = "") -> int:
    CALLS[name] += 1
    return CALLS[name]


def fails(says: str) -> Callable[[Any], Any]:
    """Register a model whose verdict fails with a message that contains `says`."""
    return lambda forward: _register(forward, Status.FAILED, says)


def unproven(says: str) -> Callable[[Any], Any]:
    """Register a model whose verdict is unproven for a reason that contains `says`."""
    return lambda forward: _register(forward, Status.UNPROVEN, says)


def passes(forward: Any) -> Any:
    """Register a model that is recorded as it is, whatever it tries."""
    return _register(forward, Status.PASSED, "")


def documented(entry: str) -> Callable[[Any], Any]:
    """Register a model that passes, for the reason that the documentation gives under `entry`."""

    def register(forward: Any) -> Any:
        DOCUMENTED[forward.__name__] = entry
        return _register(forward, Status.PASSED, "")

    return register


def _register(forward: Any, status: Status, says: str) -> Any:
    assert forward.__name__ not in MODELS
    MODELS[forward.__name__] = Fooling(forward, status, says)
    return forward


class Weighted(nn.Module):
    """A model with a parameter and a buffer, and an array over the buffer, whose forward is its subclass's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5, 2.5, 3.5]))
        self.register_buffer("memory", torch.tensor([1.0, 2.0, 3.0]))
        self.array = self.memory.numpy()
        self.address = self.weight.data_ptr()
