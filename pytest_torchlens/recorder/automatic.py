"""Models found by themselves: for a test that trains and says no more than what is expected of it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.modules.module import register_module_forward_pre_hook

if TYPE_CHECKING:
    from torch import nn

    from pytest_torchlens.recorder.recorder import Recorder


class ModelFinder:
    """Tracks every model that is called: layers and parameters.

    A model is the outermost module with parameters; a scalar from one without, such as ``nn.MSELoss()``, is the loss.

    Parameters
    ----------
    recorder
        What they are tracked by.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._names: dict[str, int] = {}
        self._handles = [
            register_module_forward_pre_hook(self._is_called),
            register_module_forward_hook(self._has_returned),
        ]

    def close(self) -> None:
        """Look for no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _is_called(self, module: nn.Module, _: Any) -> None:
        if (
            not torch.is_grad_enabled()
            or module in self._known
            or not any(_.requires_grad for _ in module.parameters())
        ):
            return
        self._known.update(module.modules())
        name = self._new_name(module)
        self._recorder.track_layers(module, name=name)
        self._recorder.track_parameters(module, name=name)

    def _has_returned(self, module: nn.Module, _: Any, output: Any) -> None:
        __tracebackhide__ = True
        if module in self._known or not isinstance(output, torch.Tensor) or output.dim() or not output.requires_grad:
            return
        self._recorder.log(loss=output)

    def _new_name(self, module: nn.Module) -> str:
        name = type(module).__name__
        self._names[name] = number = self._names.get(name, 0) + 1
        return name if number == 1 else f"{name}-{number}"
