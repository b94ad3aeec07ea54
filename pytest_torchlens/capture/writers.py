"""Which tensors a call overwrites: by its name, its ``inplace`` flag, its schema, or the table of silent writers.

Batch norm in training and instance norm with running statistics change their statistics without raising the version
counter, so nothing but knowledge of the function tells.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture.schemas import is_operator
from pytest_torchlens.capture.schemas import written_arguments

Writer = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]

NEVER: tuple[Any, ...] = ()


def writer_of(func: Callable[..., Any], name: str) -> Writer | None:
    """Return what tells the tensors that a call of `func` will overwrite; None if it never overwrites any.

    An ``out=`` argument is left to the caller: any function may have one.
    """
    own = name if isinstance(func, torch._ops.OpOverload) else getattr(func, "__name__", name)
    if own in _STATISTICS:
        return _statistics(func, own)
    if own in ("embedding", "embedding_bag") and isinstance(func, types.FunctionType):
        return _renormalised
    if by_schema := None if isinstance(func, types.FunctionType) else _by_schema(func, name):
        return by_schema
    if name == "__setitem__" or own == "__set__" or _has_in_place_name(name):
        return None if is_operator(func) else _first
    return _by_flag(func) if isinstance(func, types.FunctionType) else None


def _has_in_place_name(name: str) -> bool:
    if name.startswith("__i") and name.endswith("__"):
        return name not in ("__invert__", "__index__", "__int__", "__init__", "__iter__")
    return name.endswith("_") and not name.endswith("__")


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    target = args[0] if args else next(iter(kwargs.values()))
    return tuple(target) if isinstance(target, list | tuple) else (target,)


def _by_schema(func: Callable[..., Any], name: str) -> Writer | None:
    written = written_arguments(func, name)
    if not written:
        return None

    def targets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        found = [args[place] if place < len(args) else kwargs.get(keyword) for place, keyword in written]
        flat = [item for one in found for item in (one if isinstance(one, list | tuple) else (one,))]
        return tuple(item for item in flat if isinstance(item, torch.Tensor))

    return targets


def _by_flag(func: types.FunctionType) -> Writer | None:
    """Return a writer for functions with an ``inplace`` parameter, such as `torch.nn.functional.relu`."""
    body = inspect.unwrap(func)
    names = inspect.signature(body).parameters if isinstance(body, types.FunctionType) else ()
    if "inplace" not in names:
        return None
    place = list(names).index("inplace")

    def target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        flag = args[place] if len(args) > place else kwargs.get("inplace", False)
        return _first(args, kwargs) if flag else NEVER

    return target


_MAX_NORM = 3  # its place among the arguments of F.embedding and F.embedding_bag


def _renormalised(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the table of an embedding that rescales the rows it looks up to `max_norm`."""
    bag_first = (
        1  # F.embedding(input, weight, padding_idx, max_norm), F.embedding_bag(input, weight, offsets, max_norm)
    )
    max_norm = args[3] if len(args) > 3 else kwargs.get("max_norm")  # noqa: PLR2004 - its place, see above
    weight = args[bag_first] if len(args) > bag_first else kwargs.get("weight")
    return NEVER if max_norm is None or weight is None else (weight,)


# function: positions of mean, variance and the flag that makes it write, then the flag's keyword and default
_STATISTICS = {
    "batch_norm": (1, 2, 5, "training", False),
    "instance_norm": (1, 2, 5, "use_input_stats", True),
    "native_batch_norm": (3, 4, 5, "training", False),
}
_BUILTIN_STATISTICS = (3, 4, 5)


def _statistics(func: Callable[..., Any], name: str) -> Writer:
    mean, variance, place, keyword, default = _STATISTICS[name]
    if not isinstance(func, types.FunctionType):  # torch.batch_norm takes weight and bias first
        mean, variance, place = _BUILTIN_STATISTICS

    def targets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if not (args[place] if len(args) > place else kwargs.get(keyword, default)):
            return NEVER
        first = args[mean] if len(args) > mean else kwargs.get("running_mean")
        second = args[variance] if len(args) > variance else kwargs.get("running_var")
        return tuple(item for item in (first, second) if item is not None)

    return targets
