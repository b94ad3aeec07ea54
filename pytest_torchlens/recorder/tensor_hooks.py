"""Reads tensors during training through hooks, which change nothing and are all removed at the end."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.recorder.readings import Readings
from pytest_torchlens.recorder.readings import StepReading
from pytest_torchlens.recorder.readings import first_tensor
from pytest_torchlens.recorder.readings import is_measurable
from pytest_torchlens.recorder.statistics import TensorStatistics
from pytest_torchlens.recorder.statistics import picture_sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from pytest_torchlens.recorder.expectations import Expectations
    from pytest_torchlens.recorder.recorder_options import RecorderOptions
    from pytest_torchlens.recorder.steps import Clock
    from pytest_torchlens.recorder.tracker import Item


class Hook:
    """A hook that is not copied: a copied or saved model is not tracked.

    Parameters
    ----------
    call
        The function to call.
    """

    __torch_unserializable__ = True

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *what: Any) -> None:
        """Call the function."""
        self._call(*what)

    def __reduce__(self) -> tuple[Any, ...]:
        # The replacement takes any arguments and does nothing, and loads without this package.
        return getattr, (nullcontext(), "__exit__")


class TensorHooks:
    """Hooks on modules and tensors, and their readings in the current step.

    Parameters
    ----------
    options
        Options of the recorder.
    clock
        Decides whether to read.
    expectations
        May require reading in other steps.
    show
        Receives a reading and the part of its tensor to draw, on the CPU.
    """

    def __init__(
        self,
        options: RecorderOptions,
        clock: Clock,
        expectations: Expectations,
        show: Callable[[StepReading, torch.Tensor], None],
    ) -> None:
        self.readings = Readings()
        self.layer_kinds: dict[str, set[str]] = {}
        self._options = options
        self._clock = clock
        self._expectations = expectations
        self._show = show
        self._scale: float | None = None
        self._handles: list[Any] = []

    def hook_module(self, module: nn.Module, output: Item | None, gradient: Item | None) -> None:
        """Read a module's output and its gradient."""
        self._handles.append(module.register_forward_hook(Hook(partial(self._on_output, output, gradient))))

    def hook_tensor(self, tensor: torch.Tensor, value: Item, gradient: Item) -> None:
        """Read a tensor now, and its gradient on backward."""
        self.read(value, tensor)
        if tensor.requires_grad:
            handle: Any = tensor.register_hook(Hook(partial(self._on_gradient, gradient)))  # type: ignore[no-untyped-call]
            if tensor.is_leaf:
                self._handles.append(handle)

    def wants(self, item: Item) -> bool:
        """Whether to read a tensor of this item in this step."""
        return self._clock.is_recorded or self._expectations.needs(item)

    def read(self, item: Item, tensor: torch.Tensor, *, ratio: float | None = None) -> None:
        """Measure a tensor, and copy the part to draw.

        Raises
        ------
        TypeError
            If the item's transform does not return a tensor of numbers.
        """
        if not self.wants(item):
            return
        tensor = _apply_transform(item, tensor.detach())
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        reading = StepReading(
            item,
            self.readings.next_call(item),
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            TensorStatistics(tensor, norm_only=not self._clock.is_recorded),
            self._scale_of(item),
        )
        if ratio is not None:
            reading.ratio = ratio
        reading.dead = self._expectations.dead_units(item, tensor)
        self.readings.all.append(reading)
        if self._clock.is_recorded and reading.call == 1:
            self._sample(reading, tensor)

    def read_missing(self, item: Item) -> None:
        """Record a missing gradient, if an expectation needs it."""
        if self._expectations.awaits_gradient(item):
            nothing = TensorStatistics(torch.zeros(1))
            self.readings.all.append(StepReading(item, self.readings.next_call(item), (), "", nothing))

    def finish_step(self) -> list[StepReading]:
        """Show the samples of the step, return its readings, and begin the next step."""
        readings = list(self.readings.all)
        for reading in readings:
            if reading.sample is not None:
                self._show(reading, reading.sample.cpu())
                reading.sample = None
        self.readings.clear()
        self._scale = None
        return readings

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _on_output(self, output: Item | None, gradient: Item | None, module: nn.Module, _: Any, result: Any) -> None:
        if torch.compiler.is_compiling() or not (torch.is_grad_enabled() or self._options.no_grad):
            return
        if (tensor := first_tensor(result)) is None:
            return
        if output:
            self._reach(output)
            self.read(output, tensor)
        if gradient and tensor.requires_grad and torch.is_grad_enabled():
            self._reach(gradient)
            if self.wants(gradient):
                # On the tensor, not the module, so that later in-place writes do not matter.
                tensor.register_hook(Hook(partial(self._on_gradient, gradient)))  # type: ignore[no-untyped-call]

    def _on_gradient(self, item: Item, gradient: torch.Tensor) -> None:
        if is_measurable(gradient):
            self.read(item, gradient)

    def _reach(self, item: Item) -> None:
        name, kind = item.name.removesuffix(".grad"), "gradient" if "gradient" in item.kind else "output"
        self.layer_kinds.setdefault(name, set()).add(kind)

    def _sample(self, reading: StepReading, tensor: torch.Tensor) -> None:
        part = picture_sample(tensor, self._options.slot_values, is_batch=reading.item.is_batch)
        if part.is_complex():
            part = part.abs()
        if reading.scale != 1:
            part = part / reading.scale
        if part.device.type == "cpu":
            self._show(reading, part)
        else:
            reading.sample = part.float().clone()

    def _scale_of(self, item: Item) -> float:
        if self._options.scaler is None or item.kind not in {"output gradient", "tensor gradient"}:
            return 1.0
        if self._scale is None:
            self._scale = float(self._options.scaler.get_scale())
        return self._scale


def _apply_transform(item: Item, tensor: torch.Tensor) -> torch.Tensor:
    if item.drawing.transform is None:
        return tensor
    with torch.no_grad():
        # A copy, so that writes by the transform do not affect training.
        result: Any = item.drawing.transform(tensor.clone())
    if not isinstance(result, torch.Tensor) or not is_measurable(result):
        raise TypeError(f"transform of {item.name!r}: expected a tensor of floating-point numbers, got {result!r}")
    return result
