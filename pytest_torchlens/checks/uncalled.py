"""Keeps a copy of a model as it was before its first call, to compare with what its calls leave in it."""

from __future__ import annotations

import collections
import contextlib
import copy
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters


@dataclass(frozen=True)
class Uncalled:
    """A copy of a model that shares its parameters, and nothing else.

    Attributes
    ----------
    model
        The copy.
    is_new
        Whether nobody had called the model before it was copied.
    """

    model: nn.Module
    is_new: bool
    _digests: tuple[str, ...]
    _around: tuple[tuple[Any, Any], ...]
    """Containers around the model, each with a copy."""

    @classmethod
    def of(cls, model: nn.Module, *, is_new: bool) -> Uncalled | None:
        """Return the copy; None if the model cannot be copied so."""
        with torch._C.DisableTorchFunction():
            parameters = [tensor for _, tensor in named_parameters(model)]
            if any(map(is_lazy, parameters)):
                return None
            try:
                made = copy.deepcopy(model, {id(tensor): tensor for tensor in parameters})
            except Exception:  # noqa: BLE001 - a model may refuse to be copied in any way
                return None
        around = {id(found): found for found in _containers_around(model) if len(found) < _MOST_ITEMS}
        return cls(made, is_new, digests_of(model), tuple((found, copy.copy(found)) for found in around.values()))

    def has_weights_of(self, model: nn.Module) -> bool:
        """Return whether no call has written to the parameters since."""
        return self._digests == digests_of(model)

    def has_tensors_around(self) -> bool:
        """Return whether a container around the model held a tensor when it was copied."""
        leaves = (leaf for _, former in self._around for leaf in tree_leaves(_contents(former)))
        return any(is_a(leaf, torch.Tensor) for leaf in leaves)

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Give the containers around the model what they held when it was copied, until the block ends.

        What is added to them in the block stays: a module that it imports may enter itself in a table, once.
        """
        changed = [(live, former, copy.copy(live)) for live, former in self._around if not _holds(live, former)]
        try:
            for live, former, _ in changed:
                _refill(live, former)
            yield
        finally:
            for live, former, now in changed:
                added = _added(live, former, now)
                _refill(live, now)
                _add(live, added)


def digests_of(model: nn.Module) -> tuple[str, ...]:
    """Return the fingerprints of all parameters; of those without a shape yet none."""
    with torch._C.DisableTorchFunction():
        tensors = [tensor for _, tensor in named_parameters(model) if not is_lazy(tensor)]
        return tuple(fingerprint(tensor.detach()) for tensor in tensors)


_KINDS: Any = (dict, collections.OrderedDict, collections.defaultdict, list, set, collections.deque)
_MOST_ITEMS = 10_000


def _containers_around(model: nn.Module) -> Iterator[Any]:
    """Yield what a model's classes, the functions in them and the modules that define them hold in containers."""
    classes = {kind for _, module in named_modules(model) for kind in type(module).__mro__ if _is_users(home_of(kind))}
    held = [value for kind in classes for value in vars(kind).values()]
    held += [value for _, module in named_modules(model) for value in (instance_dict(module) or {}).values()]
    functions = [value for value in held if type(value) is types.FunctionType]
    inside = [value for function in functions for value in _inside(function)]
    of_classes = [value for kind in classes for value in vars(kind).values()]
    homes = {home_of(kind) for kind in classes}
    globals_ = [value for home in homes for value in _globals_of(home)]
    yield from (value for value in (*of_classes, *inside, *globals_) if type(value) in _KINDS)


def _is_users(home: str) -> bool:
    return home.partition(".")[0] not in ("torch", "builtins", *sys.stdlib_module_names)


def _globals_of(home: str) -> list[Any]:
    own = instance_dict(sys.modules.get(home)) or {}
    return [value for name, value in own.items() if not name.startswith("__")]


def _inside(function: types.FunctionType) -> Iterator[Any]:
    """Yield the defaults of a function, and what it has from the function around it."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            yield cell.cell_contents


def _holds(live: Any, former: Any) -> bool:
    """Return whether a container holds the very objects that its copy has."""
    if len(live) != len(former):
        return False
    if isinstance(live, dict):
        return all(one is two for key in former for one, two in [(former[key], live.get(key, live))])
    return live == former if isinstance(live, set) else all(one is two for one, two in zip(live, former, strict=True))


def _contents(container: Any) -> list[Any]:
    return [*(container.values() if isinstance(container, dict) else container)]


def _added(live: Any, *before: Any) -> Any:
    """Return what a container holds that none of its copies from before does."""
    if isinstance(live, dict):
        return {key: value for key, value in live.items() if all(key not in one for one in before)}
    known = {id(value) for one in before for value in one}
    return [value for value in live if id(value) not in known]


def _refill(live: Any, contents: Any) -> None:
    contents = copy.copy(contents)
    live.clear()
    _add(live, contents)


def _add(live: Any, contents: Any) -> None:
    live.extend(contents) if isinstance(live, list | collections.deque) else live.update(contents)
