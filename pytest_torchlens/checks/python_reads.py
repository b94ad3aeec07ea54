"""Notes whether Python reads values of tensors while a model runs: for a condition, a length, a number of steps.

The methods that read are replaced for that time.  A mode would do, but kernels are chosen otherwise under one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import torch

_METHODS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "equal", "allclose")
_FUNCTIONS = ("equal", "allclose", "is_nonzero")


class ReadingCall:
    """Calls a model, and notes whether Python read a value meanwhile."""

    def __init__(self, model: Callable[..., Any]) -> None:
        self._model = model
        self._found: list[bool] = []

    @property
    def has_read(self) -> bool:
        """Whether Python has read a value."""
        return bool(self._found)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        with contextlib.ExitStack() as stack:
            for owner, names in ((torch.Tensor, _METHODS), (torch, _FUNCTIONS)):
                for name in names:
                    stack.enter_context(_replaced(owner, name, self._found))
            return self._model(*args, **kwargs)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, found: list[bool]) -> Iterator[None]:
    original, own = getattr(owner, name), vars(owner).get(name)

    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        found.append(True)
        return original(*args, **kwargs)

    setattr(owner, name, read)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
