"""Parameters, read when a step is complete: values, gradients, and what the step did to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pytest_torchlens.recorder.outputs import is_measurable
from pytest_torchlens.recorder.sample import spread_sample
from pytest_torchlens.recorder.statistics import NOT_MEASURED

if TYPE_CHECKING:
    from torch import nn

    from pytest_torchlens.recorder.items import Item
    from pytest_torchlens.recorder.watch import Watch


@dataclass
class Tracked:
    """One parameter and what is followed of it; `before` is a sample of it as it was when the step began."""

    parameter: nn.Parameter
    value: Item | None
    gradient: Item | None
    update: Item | None
    before: torch.Tensor | None = None


class Parameters:
    """The parameters that are followed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.all: list[Tracked] = []

    def add(self, parameter: nn.Parameter, value: Item | None, gradient: Item | None, update: Item | None) -> None:
        """Follow one more."""
        self.all.append(Tracked(parameter, value, gradient, update))

    def remember(self) -> None:
        """Keep a sample of each whose update will be asked for: the step is about to change them."""
        for tracked in self.all:
            wanted = tracked.update is not None and self._watch.wants(tracked.update)
            tracked.before = _sample(tracked.parameter) if wanted else None

    def read(self) -> None:
        """Read all of them: the step has changed them."""
        for tracked in self.all:
            # In this order: where something is not as expected, the cause is told of and not what it led to.
            if tracked.gradient:
                self._read_gradient(tracked.gradient, tracked.parameter.grad)
            if tracked.update and tracked.before is not None:
                self._read_update(tracked.update, tracked.parameter, tracked.before)
            if tracked.value:
                self._read(tracked.value, tracked.parameter)

    def _read(self, item: Item, tensor: torch.Tensor) -> None:
        if is_measurable(tensor):
            self._watch.read(item, tensor)

    def _read_gradient(self, item: Item, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            self._read(item, gradient)
        else:
            self._watch.read_missing(item)

    def _read_update(self, item: Item, parameter: nn.Parameter, before: torch.Tensor) -> None:
        after = _sample(parameter)
        if after.shape != before.shape or not is_measurable(after):
            return
        update = after - before
        self._watch.read(item, update, ratio=_ratio(update, before))


def _ratio(update: torch.Tensor, before: torch.Tensor) -> float:
    change, norm = float(torch.linalg.vector_norm(update)), float(torch.linalg.vector_norm(before))
    if not norm:
        return NOT_MEASURED
    return math.inf if math.isinf(change) else change / norm


def _sample(parameter: nn.Parameter) -> torch.Tensor:
    part = spread_sample(parameter.detach())
    return part.clone() if part.is_complex() else part.float().clone()
