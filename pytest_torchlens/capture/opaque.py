"""Code that no mode can look into, recorded as one operation: scripted and compiled modules and functions."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.capture.origins import tensors_used

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

Tensors = tuple[torch.Tensor, ...]


def is_opaque(module: torch.nn.Module) -> bool:
    """Return whether the inside of a module's forward is out of sight."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    compiled = sys.modules.get("torch._dynamo.eval_frame")  # not imported for our sake: it is slow
    return compiled is not None and isinstance(module, compiled.OptimizedModule)


def custom_info(func: Callable[..., Any], name: str, writer: Overwritten | None = None) -> FunctionInfo:
    """Return the facts about a function that is no function of torch; it may draw random numbers."""
    info = FunctionInfo(func)
    info.name = name
    info.layer_type = name.lower()
    info.kind = Kind.LEAF
    info.writer = writer
    info.draws = True
    info.opaque = True
    info.heeds_settings = True
    return info


class Overwritten:
    """Tells what code out of sight has overwritten of its arguments: what it may write before, what it wrote after."""

    def __init__(self) -> None:
        self._before: list[tuple[torch.Tensor, str]] = []

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensors:
        """Return all tensors that it was given, and note their fingerprints."""
        given = {id(tensor): tensor for tensor in tensors((args, kwargs)) if not is_lazy(tensor)}
        self._before = [(tensor, fingerprint(tensor)) for tensor in given.values()]
        return tuple(given.values())

    def written(self) -> Tensors:
        """Return those that have other contents since, and forget all."""
        before, self._before = self._before, []
        return tuple([tensor for tensor, former in before if fingerprint(tensor) != former])


def may_write(code: Any, training: bool) -> bool:
    """Return whether scripted code has a step that may write to its tensors; of other code it cannot be told."""
    try:
        graph = str(code.inlined_graph)
    except (AttributeError, RuntimeError):
        return True
    return _WRITES.search(graph) is not None or (training and _WRITES_IN_TRAINING.search(graph) is not None)


_WRITES = re.compile(r"[a-z0-9]_\(|::SetAttr|::data\(|::fork|::CallFunction|::CallMethod|\bout=")
_WRITES_IN_TRAINING = re.compile(r"::\w*(batch|instance)_norm")


class OpaqueModule:
    """A module as a function of the tensors that it holds (`held`), then of its inputs.

    Parameters
    ----------
    call
        What stands for ``module.__call__``.
    module
        The module.
    registered
        Whether it belongs to the recorded model, which a recording must not keep alive.
    """

    def __init__(self, call: Callable[..., Any], module: torch.nn.Module, registered: bool) -> None:
        self._call = call
        self.module: Callable[[], torch.nn.Module | None] = weakref.ref(module) if registered else lambda: module
        self.held: Tensors = tuple(tensor for tensor in tensors_used(module) if not is_lazy(tensor))

    def info(self) -> FunctionInfo:
        """Return the facts about a call of the module."""
        module: Any = self.module()
        inner = getattr(module, "_orig_mod", module)
        training = any(getattr(part, "training", False) for part in inner.modules())
        writer = Overwritten() if may_write(module, training) else None
        return custom_info(self, getattr(inner, "original_name", type(inner).__name__), writer)

    def __call__(self, held: Tensors, *args: Any, **kwargs: Any) -> Any:
        """Call the module with other contents in its tensors; what it writes to them ends up in `held`."""
        others = [(own, other) for own, other in zip(self.held, held, strict=True) if own is not other]
        former = [duplicate(own) for own, _ in others]
        for own, other in others:
            overwrite(own, other)
        try:
            return self._call(self.module(), *args, **kwargs)
        finally:
            for (own, other), contents in zip(others, former, strict=True):
                overwrite(other, own)
                overwrite(own, contents)
