"""Runs the bodies of composite functions, so that the calls inside them are recorded.

PyTorch's own functions hand a call to the mode if a guard finds one; in these bodies the guards find none.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch.overrides

_GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_GUARD_OBJECTS = tuple(getattr(torch.overrides, name) for name in _GUARDS)


class _UnguardedGlobals(dict[str, Any]):
    """A module's globals, looked up live, in which the override guards return False.

    With the real guards the body would dispatch to the mode again, for ever.
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
    """Return a function that runs the body of `func` (of the innermost function, if decorated) without overrides."""
    body = _bodies.get(func)
    if body is None:
        body = _unguarded_body(func)
        if func.__closure__ is None:  # a closure may hold the function, which would then never be freed
            _bodies[func] = body
    return body


def _unguarded_body(func: types.FunctionType) -> types.FunctionType:
    real: types.FunctionType = getattr(func, "__wrapped__", func)
    body = types.FunctionType(
        real.__code__, _UnguardedGlobals(real.__globals__), real.__name__, real.__defaults__, real.__closure__
    )
    body.__kwdefaults__ = real.__kwdefaults__
    return body
