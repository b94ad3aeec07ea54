"""Makes the index of a part of a tensor, from an index or from names of dimensions, and writes it as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.records import close

_DIMENSIONS = {"example": 0, "channel": 1, "position": -2, "feature": -1, "head": -3}
"""Dimensions by name; a head of ``(number, of)`` is a part of the last one."""


def index_for(label: str, shape: tuple[int, ...], given: Any) -> Any:
    """Return an index on the CPU, checked against a shape.

    Raises
    ------
    TypeError, ValueError
        If it does not fit, or there is nothing at it.
    """
    index = _by_name(label, shape, given) if isinstance(given, Mapping) else given
    index = torch.as_tensor(index) if isinstance(index, list) else index
    index = substitute(index, lambda part: part.cpu() if isinstance(part, torch.Tensor) else part)
    _check_types(label, index)
    try:
        part = torch.zeros(shape, dtype=torch.bool)[index]
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"edit of {label}: [{text_of(index)[1:-1]}] does not fit shape {list(shape)}: {error}"
        ) from None
    if not part.numel():
        raise ValueError(f"edit of {label}: nothing is at {text_of(index)} of shape {list(shape)}")
    return index


def _check_types(label: str, index: Any) -> None:
    for part in index if isinstance(index, tuple) else (index,):
        if getattr(part, "dtype", None) in (torch.uint8, np.dtype("uint8")):
            raise TypeError(
                f"edit of {label}: an index of uint8 may be a mask or numbers: give .bool() of it for a mask, "
                ".long() for numbers"
            )
        if isinstance(part, str):
            raise TypeError(f"edit of {label}: expected an index, or names such as {{'position': 3}}, got {part!r:.80}")
        if isinstance(part, bool | np.bool_):
            raise TypeError(f"edit of {label}: expected a number, a slice, numbers or a mask in the index, got {part}")


# -- by name -------------------------------------------------------------------------------------------------------


def _by_name(label: str, shape: tuple[int, ...], at: Mapping[str, Any]) -> Any:
    """Return the index for ``{"position": 3, "feature": 7}``."""
    if not at:
        raise ValueError(f"edit of {label}: at names no part: leave it out, or name one: {{'position': 3}}")
    if "mask" in at:
        if len(at) > 1:
            raise ValueError(f"edit of {label}: a mask goes alone")
        return _mask(label, shape, at["mask"])
    index: list[Any] = [slice(None)] * len(shape)
    for name, given in at.items():
        dimension, where = _dimension(label, shape, name, given)
        if index[dimension] != slice(None):
            raise ValueError(f"edit of {label}: {name} is a dimension of {list(shape)} that another name has taken")
        index[dimension] = _of_one(label, name, where, shape[dimension])
    return _all_combinations(shape, index)


def _mask(label: str, shape: tuple[int, ...], given: Any) -> torch.Tensor:
    mask = torch.as_tensor(given)
    if mask.dtype is not torch.bool:
        raise TypeError(f"edit of {label}: expected a mask of booleans, such as mask > 0, got {mask.dtype}")
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"edit of {label}: a mask of shape {list(mask.shape)} does not fit shape {list(shape)}"
        ) from None


def _dimension(label: str, shape: tuple[int, ...], name: str, where: Any) -> tuple[int, Any]:
    if name not in _DIMENSIONS:
        hint = close(name, [*_DIMENSIONS, "mask"]) or f"there are: {', '.join([*_DIMENSIONS, 'mask'])}"
        raise ValueError(f"edit of {label}: no part of a tensor is called {name!r}; {hint}")
    if name == "head" and isinstance(where, tuple):
        return -1, _head(label, shape, where)
    dimension = _DIMENSIONS[name]
    if not -len(shape) <= dimension < len(shape):
        raise ValueError(f"edit of {label}: shape {list(shape)} has no dimension for {name}")
    return dimension, where


def _head(label: str, shape: tuple[int, ...], where: tuple[Any, ...]) -> slice:
    """Return the features of one of several heads that stand side by side."""
    if len(where) != 2 or not all(map(_is_integer, where)) or where[1] < 1:  # noqa: PLR2004 - number and of
        raise ValueError(f"edit of {label}: head: expected (number, of), such as (0, 8), got {where!r:.80}")
    number, of = where
    if not shape or shape[-1] % of:
        features = shape[-1] if shape else "no"
        raise ValueError(f"edit of {label}: {features} features are not {of} heads of equal size")
    if not -of <= number < of:
        raise ValueError(f"edit of {label}: there is no head {number} of {of}")
    size = shape[-1] // of
    return slice(number % of * size, (number % of + 1) * size)


def _of_one(label: str, name: str, where: Any, size: int) -> Any:
    """Return what is at one dimension: a number, a slice, or a tensor of numbers."""
    if isinstance(where, slice) or _is_integer(where):
        return where
    if not isinstance(where, list | tuple | range | np.ndarray | torch.Tensor):
        raise TypeError(f"edit of {label}: {name}: expected a number, a slice or several numbers, got {where!r:.80}")
    numbers = torch.as_tensor(list(where) if isinstance(where, tuple | range) else where).cpu()
    if numbers.dtype is torch.bool and numbers.shape == (size,):
        return numbers.nonzero()[:, 0]
    if numbers.dtype is torch.bool or numbers.dim() > 1:
        raise ValueError(
            f"edit of {label}: {name}: expected numbers, or {size} booleans, got {numbers.dtype} of shape "
            f"{list(numbers.shape)}"
        )
    return numbers


def _all_combinations(shape: tuple[int, ...], index: list[Any]) -> tuple[Any, ...]:
    """Return an index of all that lies at each of these places, dimensions in order; indexing pairs several lists."""
    named = [where for where in index if where != slice(None) or isinstance(where, torch.Tensor)]
    several = [where for where in named if isinstance(where, torch.Tensor) and where.dim()]
    if not several or len(named) == 1:
        return tuple(index)
    numbers = [
        torch.arange(size)[where] if isinstance(where, slice) else torch.as_tensor(where)
        for where, size in zip(index, shape, strict=True)
    ]
    rank = sum(each.dim() for each in numbers)
    dimensions = iter(range(rank))
    return tuple([each.reshape([-1] + [1] * (rank - 1 - next(dimensions))) if each.dim() else each for each in numbers])


def _is_integer(given: object) -> bool:
    return isinstance(given, int | np.integer) and not isinstance(given, bool)


# -- as text -------------------------------------------------------------------------------------------------------


def text_of(index: Any) -> str:
    """Return an index as in Python's code: ``"[:, 0]"``."""
    parts = index if isinstance(index, tuple) else (index,)
    return f"[{', '.join(map(_part_text, parts))}]"


def _part_text(part: Any) -> str:
    if isinstance(part, slice):
        step = "" if part.step is None else f":{part.step}"
        return f"{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}{step}"
    if isinstance(part, torch.Tensor) and part.dtype is torch.bool:
        return f"a mask of {int(part.sum())}"
    if isinstance(part, torch.Tensor):
        return _numbers_text(part.flatten().tolist() if 1 in part.shape else part.tolist())
    return "..." if part is ... else str(part)


def _numbers_text(numbers: Any) -> str:
    """Return numbers, those in a row as a slice."""
    is_row = isinstance(numbers, list) and len(numbers) > 2 and numbers == [*range(len(numbers))]  # noqa: PLR2004
    return f"0:{len(numbers)}" if is_row else str(numbers)
