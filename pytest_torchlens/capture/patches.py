"""The few attributes of torch that are replaced while any thread records, and are put back when none does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.overrides

from pytest_torchlens.capture.tracer import Tracer

_lock = threading.Lock()
_active = threading.local()
_installed = 0


def tracer_here() -> Tracer | None:
    """Return the tracer of this thread, if it records."""
    return getattr(_active, "tracer", None)


@contextlib.contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Let `tracer` see this thread's module calls and torch functions."""
    _install()
    _active.tracer = tracer
    try:
        with tracer:
            yield
    finally:
        _active.tracer = None
        _remove()


def _module_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Stand in for ``nn.Module.__call__``."""
    tracer = _watching_tracer()
    if tracer is None:
        return _ORIGINAL_CALL(module, *args, **kwargs)
    return tracer.call_module(_ORIGINAL_CALL, module, args, kwargs)


def _apply(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    """Stand in for ``torch.autograd.Function.apply``."""
    tracer = _watching_tracer()
    call = _ORIGINAL_APPLY.__get__(None, function)
    return call(*args, **kwargs) if tracer is None else tracer.call_custom(call, function.__name__, args, kwargs)


def _watching_tracer() -> Tracer | None:
    """Return this thread's tracer, but for code that is being compiled or traced by jit."""
    tracer = tracer_here()
    if tracer is None or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return None
    return tracer


def _has_torch_function(relevant: Any) -> bool:
    """Stand in for ``torch.overrides.has_torch_function``: a mode of ours is no reason to leave a fast path."""
    if tracer_here() is None or not torch._C._len_torch_function_stack():
        return bool(_ORIGINAL_GUARD(relevant))
    with torch.overrides._pop_mode_temporarily():
        return bool(_ORIGINAL_GUARD(relevant))


_ORIGINAL_CALL = torch.nn.Module.__call__
_ORIGINAL_APPLY = torch.autograd.Function.__dict__["apply"]
_ORIGINAL_GUARD = torch.overrides.has_torch_function


def _install() -> None:
    global _installed  # noqa: PLW0603 - the count of recording threads is a fact about the process
    with _lock:
        if not _installed:
            _replace(_module_call, classmethod(_apply), _has_torch_function)
        _installed += 1


def _remove() -> None:
    global _installed  # noqa: PLW0603 - as above
    with _lock:
        _installed -= 1
        if not _installed:
            _replace(_ORIGINAL_CALL, _ORIGINAL_APPLY, _ORIGINAL_GUARD)


def _replace(module_call: Any, apply: Any, guard: Any) -> None:
    torch.nn.Module.__call__ = module_call  # type: ignore[method-assign]
    torch.autograd.Function.apply = apply  # type: ignore[method-assign]
    torch.overrides.has_torch_function = guard
