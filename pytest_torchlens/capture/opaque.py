"""Code that no mode can look into, recorded as one operation: scripted and compiled code, function transforms."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import Kind


def is_opaque(module: torch.nn.Module) -> bool:
    """Return whether the inside of a module's forward is out of sight."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    compiled = sys.modules.get("torch._dynamo.eval_frame")  # not imported for our sake: it is slow
    return compiled is not None and isinstance(module, compiled.OptimizedModule)


def module_info(call: Callable[..., Any], module: torch.nn.Module) -> FunctionInfo:
    """Return the facts about a module as a function of its inputs."""
    inner = getattr(module, "_orig_mod", module)
    return custom_info(functools.partial(call, module), getattr(inner, "original_name", type(inner).__name__))


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


def transform_info(transform: Callable[..., Any], func: Callable[..., Any]) -> FunctionInfo:
    """Return the facts about a transform (vmap, grad) of `func`, called with what `captured` gives, then the rest."""

    def run(captured_tensors: tuple[torch.Tensor, ...], *rest: Any, **kwargs: Any) -> Any:
        return transform(_rebound(func, captured_tensors), *rest, **kwargs)

    return custom_info(run, transform.__name__.removesuffix("_impl"))


def captured(func: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a function reads from the function around it."""
    cells = func.__closure__ or () if isinstance(func, types.FunctionType) else ()
    return tuple(cell.cell_contents for cell in cells if _holds_tensor(cell))


def _rebound(func: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    """Return `func` with other tensors in place of those that it captured."""
    if not tensors or not isinstance(func, types.FunctionType):
        return func
    values = iter(tensors)
    cells = [types.CellType(next(values)) if _holds_tensor(cell) else cell for cell in func.__closure__ or ()]
    rebound = types.FunctionType(func.__code__, func.__globals__, func.__name__, func.__defaults__, tuple(cells))
    rebound.__kwdefaults__ = func.__kwdefaults__
    return rebound


def _holds_tensor(cell: types.CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, torch.Tensor)
    except ValueError:  # not filled yet
        return False
