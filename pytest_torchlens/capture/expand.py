"""Runs the body of a Python-level torch function so that the calls inside it are seen by the mode."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch.overrides

_GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_GUARD_OBJECTS = tuple(getattr(torch.overrides, name) for name in _GUARDS)


class _Unguarded(dict[str, Any]):
    """A module's globals, looked up live, in which the override guards say no.

    Without it the body would hand itself to the mode again, for ever.
    """

    def __init__(self, real: dict[str, Any]) -> None:
        guards = {name: _no for name, value in real.items() if any(value is guard for guard in _GUARD_OBJECTS)}
        super().__init__(guards)
        self._real = real

    def __missing__(self, name: str) -> Any:
        return self._real[name]


def _no(*_relevant: Any) -> bool:
    return False


_bodies: weakref.WeakKeyDictionary[types.FunctionType, types.FunctionType] = weakref.WeakKeyDictionary()


def body_of(func: types.FunctionType) -> Callable[..., Any]:
    """Return a function that runs the body of `func`, or of what it decorates, without asking for overrides."""
    body = _bodies.get(func)
    if body is None:
        body = _unguarded(func)
        if func.__closure__ is None:  # else the body may hold the function, which then never goes
            _bodies[func] = body
    return body


def _unguarded(func: types.FunctionType) -> types.FunctionType:
    real: types.FunctionType = getattr(func, "__wrapped__", func)
    body = types.FunctionType(
        real.__code__, _Unguarded(real.__globals__), real.__name__, real.__defaults__, real.__closure__
    )
    body.__kwdefaults__ = real.__kwdefaults__
    return body
