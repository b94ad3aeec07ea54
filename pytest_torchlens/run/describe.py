"""Arguments and outputs of a forward pass, in words."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def describe(value: Any, name: str = "") -> tuple[str, ...]:
    """Return one line a tensor of a nested value: ``"0.boxes: float32[100, 4]"``.

    A tensor that stands alone and has no name is its type and shape only.
    """
    return tuple(f"{place}: {_tensor(tensor)}" if place else _tensor(tensor) for place, tensor in _leaves(value, name))


def describe_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one line a tensor of the arguments, under the names that ``forward`` gives them."""
    try:
        bound: Mapping[str, Any] = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except TypeError:  # forward will say what does not fit
        bound = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
    return describe(bound)


def _tensor(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _leaves(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        yield from _leaves(dict(enumerate(value)), name)
