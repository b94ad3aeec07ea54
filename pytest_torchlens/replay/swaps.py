"""Checks and makes what is put in the place of a recorded value."""

from __future__ import annotations

import cmath
import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np
import torch

from pytest_torchlens.capture import Value
from pytest_torchlens.capture.values import strides_of

Swap = float | torch.Tensor | Callable[[torch.Tensor], torch.Tensor]
"""A number for each element, a tensor of the same shape, or a function of the tensor."""


class Kind(NamedTuple):
    """What all that can take the place of a tensor has in common with it, and its strides (None without)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    stride: tuple[int, ...] | None

    @classmethod
    def of(cls, value: Value | torch.Tensor) -> Kind:
        """Return the kind of a value or tensor."""
        stride = strides_of(value) if isinstance(value, torch.Tensor) else value.stride
        return cls(value.dtype, tuple(value.shape), value.device, stride)

    def __str__(self) -> str:
        """Return dtype, shape and device: ``"float32[3, 6] on cpu"``."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)} on {self.device}"


class Replacement:
    """What a swap puts in the place of one value.

    Parameters
    ----------
    what
        What is swapped, for messages: ``"swap of relu_1_2"``.
    kind
        What has to fit.
    new
        What is put there: a `Swap`.

    Raises
    ------
    TypeError, ValueError
        If it does not fit.
    """

    def __init__(self, what: str, kind: Kind, new: Any) -> None:
        self._what = what
        self._kind = kind
        self._new = new.item() if isinstance(new, np.generic) else new
        self.is_function = callable(new) and not isinstance(new, torch.Tensor)
        """Whether it needs the value itself."""
        if isinstance(new, type):
            raise TypeError(f"{what}: expected a function, got the class {new.__name__}: give {new.__name__}(…)")
        if isinstance(self._new, bool | int | float | complex):
            self._check_number(self._new)
        elif not self.is_function:
            self._check_tensor(self._new)

    def _check_number(self, new: Any) -> None:
        if reason := _why_not(new, self._kind.dtype):
            raise TypeError(f"{self._what}: {new!r} does not fit {self._kind}: {reason}")
        if self._kind.stride is None:
            raise TypeError(f"{self._what}: expected a tensor in the place of a sparse or nested one")

    def _check_tensor(self, new: object) -> None:
        if not isinstance(new, torch.Tensor):
            expected = "a tensor from the function" if self.is_function else "a number, a tensor or a function"
            hint = "; torch.as_tensor makes a tensor of it" if hasattr(new, "__array__") else ""
            raise TypeError(f"{self._what}: expected {expected}, got {type(new).__name__}{hint}")
        kind = Kind.of(new)
        if kind[:3] != self._kind[:3]:
            raise ValueError(f"{self._what}: expected {self._kind}, got {kind}{self._hint(kind)}")
        if kind.stride is None and self._kind.stride is not None:
            raise ValueError(
                f"{self._what}: expected a dense tensor, got a {_layout(new)} one; .to_dense() makes it fit"
            )
        if kind.stride is not None and self._kind.stride is None:
            raise ValueError(f"{self._what}: expected a tensor in the place of a sparse or nested one, got a dense one")

    def _hint(self, kind: Kind) -> str:
        """Return how a tensor can be made to fit; ``""`` if it cannot."""
        wanted = self._kind
        if not _expands(kind.shape, wanted.shape):
            return ""
        steps = [
            f".expand({', '.join(map(str, wanted.shape))})" if kind.shape != wanted.shape else "",
            f".to({str(wanted.device)!r})" if kind.device != wanted.device else "",
            f".to({wanted.dtype})" if kind.dtype != wanted.dtype else "",
        ]
        return f"; {''.join(steps)} makes it fit"

    def tensor(self, old: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the new tensor, in memory of its own; `old` returns the value itself, which a function needs."""
        new = self._made(old().clone()) if self.is_function else self._new
        with torch.set_grad_enabled(torch.is_grad_enabled() or not self.is_function):
            copy: torch.Tensor = new.clone() if isinstance(new, torch.Tensor) else self._filled(new)
        return copy

    def _made(self, old: torch.Tensor) -> torch.Tensor:
        """Return what the function makes of the value."""
        with (
            noted(f"{self._what}: its function raised this, called with {self._kind}"),
            torch._C._EnableTorchFunction(),
            torch.set_grad_enabled(torch.is_grad_enabled()),  # it may change it
        ):
            new: torch.Tensor = self._new(old)
        self._check_tensor(new)
        return new

    def _filled(self, number: Any) -> torch.Tensor:
        """Return a tensor of one number with the shape and strides of the value."""
        kind = self._kind
        like = torch.empty_strided(kind.shape, kind.stride or (), dtype=kind.dtype, device="meta")
        return torch.full_like(like, number, device=kind.device)


def _layout(tensor: torch.Tensor) -> str:
    return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")


@contextlib.contextmanager
def noted(text: str) -> Iterator[None]:
    """Add a note to an error of the user's code, from Python 3.11 on."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "add_note"):
            error.add_note(text)
        raise


Swaps = dict[int, Replacement]
"""Replacements by the id of the value."""
EdgeSwaps = dict[int, Swaps]
"""Replacements of what a single call reads, by its number."""


def _why_not(number: Any, dtype: torch.dtype) -> str:
    """Return why a number cannot be an element of a tensor of this dtype; ``""`` if it can."""
    if not torch.can_cast(_DTYPES[type(number)], dtype):
        return "give True or False" if dtype is torch.bool else f"give {_KINDS[dtype.is_floating_point]}"
    if dtype is torch.bool or not (isinstance(number, int) or cmath.isfinite(number)):
        return ""
    limits = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    fits = all(limits.min <= part <= limits.max for part in (number.real, number.imag))
    return "" if fits else f"its values go from {limits.min} to {limits.max}"


_DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float32, complex: torch.complex64}
_KINDS = {True: "a real number", False: "a whole number"}


def _expands(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape can be expanded to the other."""
    ends = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in (1, other) for size, other in ends)
