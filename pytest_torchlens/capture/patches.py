"""The few attributes of torch that are replaced while any thread records, and are put back when none does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import torch
import torch._functorch.apis
import torch._functorch.eager_transforms
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


def _watching_tracer() -> Tracer | None:
    """Return this thread's tracer; None while it is busy with a call, and for code being compiled or traced by jit."""
    tracer = tracer_here()
    if tracer is None or tracer.busy or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return None
    return tracer


def _module_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    tracer = _watching_tracer()
    if tracer is None:
        return _CALL(module, *args, **kwargs)
    return tracer.call_module(_CALL, module, args, kwargs)


def _apply(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    tracer = _watching_tracer()
    call = _APPLY.__get__(None, function)
    return call(*args, **kwargs) if tracer is None else tracer.call_custom(call, function.__name__, args, kwargs)


def _script_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    tracer = _watching_tracer()
    call = _SCRIPT_CALL.__get__(function, type(function))
    return call(*args, **kwargs) if tracer is None else tracer.call_opaque(call, function.name, args, kwargs)


def _thread_start(thread: threading.Thread) -> None:
    """Stand in for ``threading.Thread.start``: what a thread of the model's computes is not recorded, but noticed."""
    tracer = _watching_tracer()
    if tracer is not None and tracer.watch is not None:
        body, watch = thread.run, tracer.watch.for_thread(thread.name)

        def run() -> None:
            del thread.run
            with watch:
                body()

        thread.run = run  # type: ignore[method-assign]
    _START(thread)


def _has_torch_function(relevant: Any) -> bool:
    """Stand in for ``torch.overrides.has_torch_function``: a mode of ours is no reason to leave a fast path."""
    if tracer_here() is None or not torch._C._len_torch_function_stack():
        return bool(_GUARD(relevant))
    with torch.overrides._pop_mode_temporarily():
        return bool(_GUARD(relevant))


def _transform(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stand-in for the function behind `torch.vmap` or `torch.func.grad`."""

    def call(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tracer = _watching_tracer()
        if tracer is None or torch._C._functorch.peek_interpreter_stack() is not None:
            return original(func, *args, **kwargs)
        return tracer.call_transform(original, func, args, kwargs)

    return call


_CALL = torch.nn.Module.__call__
_APPLY = torch.autograd.Function.__dict__["apply"]
_SCRIPT_CALL = torch.jit.ScriptFunction.__dict__["__call__"]
_START = threading.Thread.start
_GUARD = torch.overrides.has_torch_function
_TRANSFORMS = (
    (torch._functorch.apis, "vmap_impl"),
    (torch._functorch.eager_transforms, "grad_impl"),
    (torch._functorch.eager_transforms, "grad_and_value_impl"),
)

# owner, attribute, what it is, what stands in for it
_REPLACED: list[tuple[Any, str, Any, Any]] = [
    (torch.nn.Module, "__call__", _CALL, _module_call),
    (torch.autograd.Function, "apply", _APPLY, classmethod(_apply)),
    (torch.jit.ScriptFunction, "__call__", _SCRIPT_CALL, _script_call),
    (threading.Thread, "start", _START, _thread_start),
    (torch.overrides, "has_torch_function", _GUARD, _has_torch_function),
    *((owner, name, getattr(owner, name), _transform(getattr(owner, name))) for owner, name in _TRANSFORMS),
]


def _install() -> None:
    global _installed  # noqa: PLW0603 - the count of recording threads is a fact about the process
    with _lock:
        if not _installed:
            for owner, name, _, stand_in in _REPLACED:
                setattr(owner, name, stand_in)
        _installed += 1


def _remove() -> None:
    global _installed  # noqa: PLW0603 - as above
    with _lock:
        _installed -= 1
        if not _installed:
            for owner, name, original, _ in _REPLACED:
                setattr(owner, name, original)
