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
_original: dict[str, Any] = {}


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


def module_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Stand in for ``nn.Module.__call__``; a plain call in threads that do not record and where code is compiled."""
    tracer = tracer_here()
    original = _original["module_call"]
    if tracer is None or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return original(module, *args, **kwargs)
    return tracer.call_module(original, module, args, kwargs)


def _has_torch_function(relevant: Any) -> bool:
    """Stand in for ``torch.overrides.has_torch_function``: a mode of ours is no reason to leave a fast path."""
    if tracer_here() is None:
        return bool(_original["has_torch_function"](relevant))
    with torch.overrides._pop_mode_temporarily():
        return bool(_original["has_torch_function"](relevant))


def _install() -> None:
    global _installed  # noqa: PLW0603 - the count of recording threads is a fact about the process
    with _lock:
        if not _installed:
            _original["module_call"] = torch.nn.Module.__call__
            _original["has_torch_function"] = torch.overrides.has_torch_function
            torch.nn.Module.__call__ = module_call  # type: ignore[method-assign]
            torch.overrides.has_torch_function = _has_torch_function  # type: ignore[assignment]
        _installed += 1


def _remove() -> None:
    global _installed  # noqa: PLW0603 - as above
    with _lock:
        _installed -= 1
        if not _installed:
            torch.nn.Module.__call__ = _original["module_call"]  # type: ignore[method-assign]
            torch.overrides.has_torch_function = _original["has_torch_function"]
