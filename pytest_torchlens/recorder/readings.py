"""Reads parameters at the end of a step, and collects the readings of the current step."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import is_dataclass
from typing import TYPE_CHECKING
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from pytest_torchlens.recorder.series import Row
from pytest_torchlens.recorder.statistics import NOT_MEASURED
from pytest_torchlens.recorder.statistics import TensorStatistics
from pytest_torchlens.recorder.statistics import spread_sample

if TYPE_CHECKING:
    from torch import nn

    from pytest_torchlens.recorder.tensor_hooks import TensorHooks
    from pytest_torchlens.recorder.tracker import Item


@dataclass
class TrackedParameter:
    """A tracked parameter and its items; `before` is a sample of its values at the start of the step."""

    parameter: nn.Parameter
    value: Item | None
    gradient: Item | None
    update: Item | None
    before: torch.Tensor | None = None


class Parameters:
    """The tracked parameters."""

    def __init__(self, hooks: TensorHooks) -> None:
        self._hooks = hooks
        self.all: list[TrackedParameter] = []

    def add(self, parameter: nn.Parameter, value: Item | None, gradient: Item | None, update: Item | None) -> None:
        """Track a parameter."""
        self.all.append(TrackedParameter(parameter, value, gradient, update))

    def remember(self) -> None:
        """Sample each parameter whose update is tracked, before the step changes it."""
        for tracked in self.all:
            is_read = tracked.update is not None and self._hooks.wants(tracked.update)
            tracked.before = _sample(tracked.parameter) if is_read else None

    def read(self) -> None:
        """Read all parameters after the step has changed them."""
        for tracked in self.all:
            # Gradient, update, value: a failure then reports the cause before its effects.
            if tracked.gradient:
                self._read_gradient(tracked.gradient, tracked.parameter.grad)
            if tracked.update and tracked.before is not None:
                self._read_update(tracked.update, tracked.parameter, tracked.before)
            if tracked.value:
                self._read(tracked.value, tracked.parameter)

    def _read(self, item: Item, tensor: torch.Tensor) -> None:
        if is_measurable(tensor):
            self._hooks.read(item, tensor)

    def _read_gradient(self, item: Item, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            self._read(item, gradient)
        else:
            self._hooks.read_missing(item)

    def _read_update(self, item: Item, parameter: nn.Parameter, before: torch.Tensor) -> None:
        after = _sample(parameter)
        if after.shape != before.shape or not is_measurable(after):
            return
        update = after - before
        self._hooks.read(item, update, ratio=_ratio(update, before))


def _ratio(update: torch.Tensor, before: torch.Tensor) -> float:
    change, norm = float(torch.linalg.vector_norm(update)), float(torch.linalg.vector_norm(before))
    if not norm:
        return NOT_MEASURED
    return math.inf if math.isinf(change) else change / norm


def _sample(parameter: nn.Parameter) -> torch.Tensor:
    part = spread_sample(parameter.detach())
    return part.clone() if part.is_complex() else part.float().clone()


@dataclass
class StepReading:
    """One measured tensor.

    Attributes
    ----------
    item : Item
        The item it belongs to.
    call : int
        Number of the tensor among those of its item in this step, from 1.
    shape : tuple of int
        Shape of the tensor.
    dtype : str
        Its dtype, such as ``float32``.
    measured : TensorStatistics
        Its statistics.
    scale : float
        Divisor for the numbers: the scale of the loss for a gradient.
    sample : torch.Tensor or None
        Values to draw that are on an accelerator; they are sent when the step ends.
    ratio, dead : float
        As in `Row`.
    """

    item: Item
    call: int
    shape: tuple[int, ...]
    dtype: str
    measured: TensorStatistics
    scale: float = 1.0
    sample: torch.Tensor | None = None
    ratio: float = NOT_MEASURED
    dead: float = NOT_MEASURED

    def row(self, step: int) -> Row:
        """Return the row of a series; waits for the device."""
        statistics = self.measured.statistics().divided_by(self.scale)
        return Row(**vars(statistics), step=step, call=self.call, ratio=self.ratio, dead=self.dead)


class Readings:
    """The readings of one step, from any thread."""

    def __init__(self) -> None:
        self._calls: Counter[int] = Counter()
        self._lock = threading.Lock()
        self.all: list[StepReading] = []

    def next_call(self, item: Item) -> int:
        """Count a tensor of an item."""
        with self._lock:
            self._calls[item.number] += 1
            return self._calls[item.number]

    def clear(self) -> None:
        """Remove all readings: a new step begins."""
        self._calls.clear()
        self.all.clear()


def first_tensor(output: Any) -> torch.Tensor | None:
    """Return the first measurable tensor in an output, also in containers; None if there is none."""
    if isinstance(output, torch.Tensor):
        return output if is_measurable(output) else None
    for part in _parts(output):
        if (tensor := first_tensor(part)) is not None:
            return tensor
    return None


def is_measurable(tensor: torch.Tensor) -> bool:
    """Whether it is a non-empty tensor of floating-point or complex numbers, stored as one tensor in memory."""
    if tensor.is_meta or tensor.is_nested or is_functorch_wrapped_tensor(tensor):
        return False
    return bool((tensor.is_floating_point() or tensor.is_complex()) and tensor.numel())


def _parts(output: Any) -> Iterable[Any]:
    if isinstance(output, Mapping):
        return output.values()
    if isinstance(output, tuple | list):
        return output
    if is_dataclass(output) and not isinstance(output, type):
        return [getattr(output, field.name) for field in fields(output)]
    return ()
