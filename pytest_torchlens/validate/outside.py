"""Finds what passes change outside the model, in the code around it: nothing puts that back.

Looked at are the globals of the modules that define the model's classes, with what these globals hold themselves, and
the environment variables.
"""

from __future__ import annotations

import operator
import os
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import looked_at
from pytest_torchlens.capture.looks import named_modules

_WITHOUT_ATTRIBUTES = ATOMS - {type, types.FunctionType} | {types.ModuleType, dict, list, set, tuple}
_NOT_USERS = frozenset(["torch", *sys.stdlib_module_names])
_MOST_ITEMS = 10_000
_FEW_NAMES = 3


class Outside:
    """A snapshot of what is around a model.

    Parameters
    ----------
    model
        The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        homes = {home_of(type(module)) for _, module in named_modules(model)}
        self._homes = sorted(home for home in homes if home.partition(".")[0] != "torch")
        self._former = self._now()

    def changed(self) -> str:
        """Return that passes have changed something since, with its names; ``""`` if nothing shows it."""
        now = self._now()
        names = dict.fromkeys([*self._former, *now])
        changed = [name for name in names if not _is_same(self._former.get(name), now.get(name))]
        if not changed:
            return ""
        more = f" and {len(changed) - _FEW_NAMES} more" if len(changed) > _FEW_NAMES else ""
        return f"the pass changes {', '.join(changed[:_FEW_NAMES])}{more}, which is not put back"

    def _now(self) -> dict[str, tuple[Any, ...]]:
        nothing: dict[str, tuple[Any, ...]] = {}
        found: dict[str, tuple[Any, ...]] = {f"os.environ[{name!r}]": (value,) for name, value in os.environ.items()}
        for home in self._homes:
            for name, value in list((instance_dict(sys.modules.get(home)) or {}).items()):
                if not name.startswith("__"):
                    found.update(looked_at(_facts, f"{home}.{name}", value, otherwise=nothing))
        return found


def _facts(name: str, value: Any) -> dict[str, tuple[Any, ...]]:
    """Return a global and its contents, and those of its attributes, by name."""
    facts = {name: (value, *_items(value))}
    own = {} if type(value) in _WITHOUT_ATTRIBUTES else dict(_attributes(value))
    return facts | {f"{name}.{attribute}": (item, *_items(item)) for attribute, item in own.items()}


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what users' code sets on a class, function or object."""
    if home_of(value if is_a(value, type) else type(value)).partition(".")[0] not in _NOT_USERS:
        attributes = type.__dict__["__dict__"].__get__(value) if is_a(value, type) else instance_dict(value) or {}
        yield from ((name, item) for name, item in attributes.items() if not name.startswith("__"))
    elif is_a(value, (types.FunctionType, types.SimpleNamespace)):
        yield from (instance_dict(value) or {}).items()


def _items(value: Any) -> tuple[Any, ...]:
    """Return what a container holds, and what a function is made of."""
    if type(value) is types.FunctionType:
        return value.__code__, value.__defaults__, *_items(value.__kwdefaults__)
    if is_a(value, dict):
        return (*dict.keys(value), *dict.values(value)) if dict.__len__(value) < _MOST_ITEMS else (dict.__len__(value),)
    if is_a(value, (list, deque, set)):
        kind: Any = next(kind for kind in (list, deque, set) if is_a(value, kind))
        return tuple(kind.__iter__(value)) if kind.__len__(value) < _MOST_ITEMS else (kind.__len__(value),)
    return ()


def _is_same(now: tuple[Any, ...] | None, former: tuple[Any, ...] | None) -> bool:
    """Return whether both hold identical objects, or equal numbers and texts; ``==`` of other objects is the user's."""
    if now is None or former is None or len(now) != len(former):
        return False
    return all(map(_is_one, now, former))


def _is_one(now: Any, former: Any) -> bool:
    return now is former or (type(now) is type(former) and type(now) in ATOMS and operator.eq(now, former))
