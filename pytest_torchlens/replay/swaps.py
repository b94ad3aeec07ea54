"""Checks and makes what is put in the place of a recorded value."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

import torch

from pytest_torchlens.capture import Value

Swap = float | torch.Tensor | Callable[[torch.Tensor], torch.Tensor]
"""A number for each element, a tensor of the same shape, or a function of the tensor."""


class Replacement:
    """What a swap puts in the place of one value.

    Raises
    ------
    TypeError, ValueError
        If it does not fit the value.
    """

    def __init__(self, label: str, value: Value, new: Any) -> None:
        self._label = label
        self._value = value
        self._new = new
        self.is_function = callable(new) and not isinstance(new, torch.Tensor)
        """Whether it needs the value itself."""
        if isinstance(new, Number):
            self._check_number(new)
        elif not self.is_function:
            self._check_tensor(new)

    def _check_number(self, new: Any) -> None:
        if not torch.can_cast(torch.tensor(new).dtype, self._value.dtype):
            raise TypeError(f"swap of {self._label}: {new!r} does not fit {_kind(self._value)}")
        if self._value.stride is None:
            raise TypeError(f"swap of {self._label}: expected a tensor in the place of a sparse or nested one")

    def _check_tensor(self, new: object) -> None:
        value = self._value
        if not isinstance(new, torch.Tensor):
            expected = "a tensor from the function" if self.is_function else "a number, a tensor or a function"
            raise TypeError(f"swap of {self._label}: expected {expected}, got {type(new).__name__}")
        if (new.dtype, new.device) != (value.dtype, value.device) or new.shape != value.shape:
            raise ValueError(f"swap of {self._label}: expected {_kind(value)}, got {_kind(new)}")

    def tensor(self, old: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the new tensor, in memory of its own; `old` returns the value itself, which a function needs."""
        new = self._new
        if self.is_function:
            with torch._C._EnableTorchFunction(), torch.set_grad_enabled(torch.is_grad_enabled()):  # it may change it
                new = new(old().clone())
            self._check_tensor(new)
        with torch.set_grad_enabled(torch.is_grad_enabled() or not self.is_function):
            copy: torch.Tensor = new.clone() if isinstance(new, torch.Tensor) else self._filled(new)
        return copy

    def _filled(self, number: Any) -> torch.Tensor:
        """Return a tensor of one number with the shape and strides of the value."""
        value = self._value
        like = torch.empty_strided(tuple(value.shape), value.stride or (), dtype=value.dtype, device="meta")
        return torch.full_like(like, number, device=value.device)


Swaps = dict[int, Replacement]
"""Replacements by the id of the value."""
EdgeSwaps = dict[int, Swaps]
"""Replacements of what a single call reads, by its number."""


def _kind(value: Value | torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
