"""Which tensors a call overwrites: by its name, its ``inplace`` flag, its schema, or the table of silent writers.

Batch norm in training and instance norm with running statistics change their statistics without raising the version
counter, so nothing but knowledge of the function tells.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
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
    silent = (_OF_FUNCTIONAL if isinstance(func, types.FunctionType) else _OF_BUILTINS).get(own)
    if silent is not None:
        return silent
    if own in ("embedding", "embedding_bag") and isinstance(func, types.FunctionType):
        return _renormalised
    by_schema = None if isinstance(func, types.FunctionType) else _by_schema(func, name)
    if by_schema is not None or is_operator(func):
        return by_schema
    if name == "__setitem__" or own == "__set__" or has_in_place_name(name):
        return _first
    return _by_flag(func) if isinstance(func, types.FunctionType) else None


def has_in_place_name(name: str) -> bool:
    """Return whether a function overwrites its first argument by the way it is called: ``add_``, ``__iadd__``."""
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
        found = [args[place] if place < len(args) else _named(kwargs, keyword) for place, keyword in written]
        flat = [item for one in found for item in (one if isinstance(one, list | tuple) else (one,))]
        return tuple(item for item in flat if isinstance(item, torch.Tensor))

    return targets


def _named(kwargs: dict[str, Any], keyword: str) -> Any:
    """Return an argument given by keyword: what schemas call ``self`` Python calls ``input``."""
    return kwargs.get(keyword, kwargs.get("input") if keyword == "self" else None)


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
_WEIGHT = 1  # and that of the table


def _renormalised(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the table of an embedding that rescales the rows it looks up to `max_norm`."""
    max_norm = args[_MAX_NORM] if len(args) > _MAX_NORM else kwargs.get("max_norm")
    weight = args[_WEIGHT] if len(args) > _WEIGHT else kwargs.get("weight")
    return NEVER if max_norm is None or weight is None else (weight,)


@dataclass(frozen=True)
class _Statistics:
    """Place of the mean among the arguments, before the variance, and the flag that makes it write, if there is one."""

    mean: int
    flag: tuple[int, str, bool] | None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the running statistics, if they are given and written."""
        if self.flag is not None:
            place, keyword, default = self.flag
            if not (args[place] if len(args) > place else kwargs.get(keyword, default)):
                return NEVER
        names = enumerate(("running_mean", "running_var"), self.mean)
        found = (args[place] if len(args) > place else kwargs.get(name) for place, name in names)
        return tuple(item for item in found if item is not None)


_TRAINING, _INPUT_STATS = (5, "training", False), (5, "use_input_stats", True)
_OF_FUNCTIONAL = {"batch_norm": _Statistics(1, _TRAINING), "instance_norm": _Statistics(1, _INPUT_STATS)}
_OF_BUILTINS = {
    **{name: _Statistics(3, _TRAINING) for name in ("batch_norm", "native_batch_norm", "_batch_norm_impl_index")},
    **{name: _Statistics(3, _TRAINING) for name in ("cudnn_batch_norm", "miopen_batch_norm")},
    **{name: _Statistics(3, None) for name in ("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")},
    "instance_norm": _Statistics(3, _INPUT_STATS),
    "batch_norm_update_stats": _Statistics(1, None),
}
