"""Code that no mode can look into, recorded as one operation: scripted, traced and compiled modules."""

from __future__ import annotations

import functools
import sys
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
    return custom_info(functools.partial(call, module), _name(module))


def custom_info(func: Callable[..., Any], name: str) -> FunctionInfo:
    """Return the facts about a function that is no function of torch; it may draw random numbers."""
    info = FunctionInfo(func)
    info.name = name
    info.layer_type = name.lower()
    info.kind = Kind.LEAF
    info.writer = None
    info.draws = True
    return info


def _name(module: torch.nn.Module) -> str:
    inner = getattr(module, "_orig_mod", module)
    return str(getattr(inner, "original_name", type(inner).__name__))
