"""Counts steps, decides which are recorded, and detects optimizer steps.

PyTorch's global optimizer hooks report a step, whoever calls ``step``.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pytest_torchlens.recorder.tracking import check_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from pytest_torchlens.recorder.recorder_options import RecorderOptions


class Clock:
    """Counts steps; the first is 0.

    Attributes
    ----------
    step : int
        The current step.
    is_recorded : bool
        Whether it is recorded, by step number, time and `Recorder.enabled`.
    """

    def __init__(self, options: RecorderOptions) -> None:
        self._options = options
        self._last = float("-inf")
        self.enabled = True
        self.step = 0
        self.is_recorded = self._decide()

    def advance(self) -> None:
        """Begin the next step."""
        self.step += 1
        self.is_recorded = self._decide()

    def _decide(self) -> bool:
        options = self._options
        if not self.enabled or self.step < options.start or (self.step - options.start) % options.every:
            return False
        if options.until is not None and self.step >= options.until:
            return False
        now = time.monotonic()
        if options.per_second and now - self._last < 1 / options.per_second:
            return False
        self._last = now
        return True


_unclosed_handles: list[RemovableHandle] = []
# Hooks of unclosed recorders. The garbage collector may run while PyTorch iterates over its hooks, when none
# may be removed, so the next recorder removes them; until then they do nothing.


class OptimizerSteps:
    """Calls functions before and after each step of an optimizer with parameters of a tracked model.

    Parameters
    ----------
    before, after
        Functions to call.
    automatic
        Whether to call `after`; if False, `Recorder.step` ends a step.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[], None], *, automatic: bool) -> None:
        self._before = before
        self._after = after
        self._models: list[nn.Module] = []
        _remove(_unclosed_handles)
        self._handles = [register_optimizer_step_pre_hook(_weak_hook(self._about_to_step))]
        if automatic:
            self._handles.append(register_optimizer_step_post_hook(_weak_hook(self._has_stepped)))
        self._unclosed = weakref.finalize(self, _unclosed_handles.extend, self._handles)

    def add_model(self, model: nn.Module) -> None:
        """Add a tracked model.

        Raises
        ------
        TypeError
            If it is not a model.
        """
        check_model(model)
        if model not in self._models:
            self._models.append(model)

    def close(self) -> None:
        """Remove the hooks."""
        self._unclosed.detach()
        _remove(self._handles)
        self._models.clear()

    def _about_to_step(self, optimizer: Optimizer) -> None:
        if self._is_ours(optimizer):
            self._before()

    def _has_stepped(self, optimizer: Optimizer) -> None:
        __tracebackhide__ = True
        if self._is_ours(optimizer):
            self._after()

    def _is_ours(self, optimizer: Optimizer) -> bool:
        """Whether it has a tracked parameter; without a tracked model, every optimizer counts."""
        ours = {id(parameter) for model in self._models for parameter in model.parameters()}
        theirs = (id(parameter) for group in optimizer.param_groups for parameter in group["params"])
        return not ours or any(parameter in ours for parameter in theirs)


def _weak_hook(method: Callable[[Optimizer], None]) -> Callable[..., None]:
    reference = weakref.WeakMethod(method)

    def hook(optimizer: Optimizer, *_: Any) -> None:
        __tracebackhide__ = True
        if live := reference():
            live(optimizer)

    return hook


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
