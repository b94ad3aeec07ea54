"""Keeps PyTorch's compiler from compiling our own code, which runs between the calls of a compiled model.

It would take what one call did for all later ones: a recorded call could run another function than its own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from collections.abc import Iterator
from types import CodeType
from types import FunctionType
from typing import Any

import torch

_eval_frame: Any = torch._C._dynamo.eval_frame
_PACKAGE = __name__.rpartition(".")[0]


@functools.cache
def leave_our_code_alone() -> None:
    """Have the compiler run the functions of this package as they are; what they call may be compiled."""
    skip = _skipper()
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE):
            for function in _functions_in(vars(module), name):
                for code in _codes(function.__code__):
                    skip(code)


def _skipper() -> Callable[[CodeType], object]:
    if hasattr(_eval_frame, "skip_code"):  # an older PyTorch
        return _eval_frame.skip_code  # type: ignore[no-any-return]
    action = _eval_frame._FrameAction
    strategy = _eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: _eval_frame.set_code_exec_strategy(code, strategy)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those inside it: comprehensions, generator expressions, lambdas, inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _functions_in(members: Any, module: str) -> Iterator[FunctionType]:
    """Yield the functions that a module defines, also in its classes."""
    for member in list(members.values()):
        plain = getattr(member, "__wrapped__", getattr(member, "fget", getattr(member, "__func__", member)))
        if getattr(plain, "__module__", "") == module and isinstance(plain, type):
            yield from _functions_in(vars(plain), module)
        elif isinstance(plain, FunctionType) and plain.__module__ == module:
            yield plain
