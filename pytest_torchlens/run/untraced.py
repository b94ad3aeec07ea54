"""Which module calls are left alone, and why: recording would change what they do, or a replay could not be had."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.opaque import is_opaque


def why_not_traced(module: torch.nn.Module) -> str:
    """Return why a module call that is about to be made is not recorded; ``""`` if it is."""
    return next((reason for reason, holds in _REASONS if holds(module)), "")


def _in_backward(_: torch.nn.Module) -> bool:
    return torch._C._current_graph_task_id() != -1


def _in_transform(_: torch.nn.Module) -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def _is_fake(_: torch.nn.Module) -> bool:
    modes = _get_current_dispatch_mode_stack()
    return any(mode.is_infra_mode() for mode in modes)


def _is_profiled(_: torch.nn.Module) -> bool:
    return bool(torch._C._autograd._profiler_enabled())


def _is_compiled(module: torch.nn.Module) -> bool:
    return is_opaque(module) or module._compiled_call_impl is not None


def _has_compiled(module: torch.nn.Module) -> bool:
    return any(_is_compiled(part) and not isinstance(part, torch.jit.ScriptModule) for part in module.modules())


def _is_lazy(module: torch.nn.Module) -> bool:
    return any(is_lazy(tensor) for tensor in itertools.chain(module.parameters(), module.buffers()))


def _has_hooks_that_stay(_: torch.nn.Module) -> bool:
    """Whether hooks on saved tensors are set, by a PyTorch that does not say which: they cannot be taken aside."""
    hooks: Any = torch._C._autograd
    if hasattr(hooks, "_top_saved_tensors_default_hooks") or not hooks._saved_tensors_hooks_is_enabled():
        return False
    try:
        hooks._saved_tensors_hooks_disable("")
    except RuntimeError:  # some are set
        return True
    finally:
        hooks._saved_tensors_hooks_enable()
    return False


def _is_distributed(_: torch.nn.Module) -> bool:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


def _is_captured(_: torch.nn.Module) -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


_REASONS: tuple[tuple[str, Callable[[torch.nn.Module], bool]], ...] = (
    ("it was made in backward", _in_backward),
    ("it was made inside a function transform", _in_transform),
    ("its tensors are fake", _is_fake),
    ("a profiler was on", _is_profiled),
    ("it is compiled or scripted", _is_compiled),
    ("a module of it is compiled", _has_compiled),
    ("it has yet to make its parameters", _is_lazy),
    ("hooks on saved tensors are set, which this PyTorch cannot take aside", _has_hooks_that_stay),
    ("other processes take part in it", _is_distributed),
    ("a CUDA graph was captured", _is_captured),
)
