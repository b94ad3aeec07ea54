"""Our place in the stack of torch function modes, in which the model may have put its own above us."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import torch
from torch._C import _get_function_stack_at
from torch._C import _len_torch_function_stack
from torch.overrides import TorchFunctionMode
from torch.overrides import _pop_mode
from torch.overrides import _push_mode

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises


@contextlib.contextmanager
def aside(mode: TorchFunctionMode) -> Iterator[None]:
    """Take a mode off, wherever it is among the others, and put it back in its place."""
    place = next(
        (at for at in reversed(range(_len_torch_function_stack())) if _get_function_stack_at(at) is mode), None
    )
    if place is None:
        yield
        return
    above = _take_down_to(place + 1)
    _pop_mode()  # type: ignore[no-untyped-call]
    _put_back(above)
    try:
        yield
    finally:
        above = _take_down_to(place)
        _put_back([mode, *above])


def heard(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for modes and subclasses to hear of, while what goes on around it is none of their business."""

    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return func(*args, **kwargs)

    return called


def _take_down_to(height: int) -> list[TorchFunctionMode]:
    """Return the modes from `height` up, the lowest first, taken off."""
    return [_pop_mode() for _ in range(_len_torch_function_stack() - height)][::-1]  # type: ignore[no-untyped-call]


def _put_back(modes: list[TorchFunctionMode]) -> None:
    for mode in modes:
        _push_mode(mode)  # type: ignore[no-untyped-call]
