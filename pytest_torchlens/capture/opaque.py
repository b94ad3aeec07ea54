"""Code that no mode can look into, recorded as one operation: scripted and compiled modules and functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.memory import overwrite

Tensors = tuple[torch.Tensor, ...]


def is_opaque(module: torch.nn.Module) -> bool:
    """Return whether the inside of a module's forward is out of sight."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    compiled = sys.modules.get("torch._dynamo.eval_frame")  # not imported for our sake: it is slow
    return compiled is not None and isinstance(module, compiled.OptimizedModule)


def custom_info(func: Callable[..., Any], name: str) -> FunctionInfo:
    """Return the facts about a function that is no function of torch; it may draw random numbers."""
    info = FunctionInfo(func)
    info.name = name
    info.layer_type = name.lower()
    info.kind = Kind.LEAF
    info.writer = None
    info.draws = True
    info.opaque = True
    info.heeds_settings = True
    return info


class OpaqueModule:
    """A module as a function of its own parameters and buffers (`held`), then of its inputs.

    Parameters
    ----------
    call
        What stands for ``module.__call__``.
    module
        The module.
    """

    def __init__(self, call: Callable[..., Any], module: torch.nn.Module) -> None:
        self._call = call
        self._module = module
        self._buffers = len(list(module.buffers()))
        self.held: Tensors = tuple(t for t in (*module.buffers(), *module.parameters()) if not is_lazy(t))

    def info(self) -> FunctionInfo:
        """Return the facts; in training its buffers count as written, for such as batch norm say nothing."""
        inner = getattr(self._module, "_orig_mod", self._module)
        info = custom_info(self, getattr(inner, "original_name", type(inner).__name__))
        if self._buffers and any(module.training for module in self._module.modules()):
            info.writer = lambda args, _: args[0][: self._buffers]
        return info

    def __call__(self, held: Tensors, *args: Any, **kwargs: Any) -> Any:
        """Call the module with other contents in its tensors; what it writes to them ends up in `held`."""
        others = [(own, other) for own, other in zip(self.held, held, strict=True) if own is not other]
        former = [own.detach().clone() for own, _ in others]
        for own, other in others:
            overwrite(own, other)
        try:
            return self._call(self._module, *args, **kwargs)
        finally:
            for (own, other), contents in zip(others, former, strict=True):
                overwrite(other, own)
                overwrite(own, contents)
