"""Keeps what the code around a model holds: globals, attributes of classes and functions, closures, containers.

For a block all of that can be as it was when it was looked at.  A `functools.lru_cache` cannot be put back, as its
entries are not known: in the block an empty one stands under its name.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import sys
import types
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import looked_at
from pytest_torchlens.capture.looks import named_modules

_KINDS: Any = (dict, collections.OrderedDict, collections.defaultdict, list, set, collections.deque)
_MOST_ITEMS = 10_000
_FEW = 100
"""What is in containers of more items is not looked into: tables of a library."""
_DEEPEST = 3
"""Objects inside each other so far are looked into."""
_OF_MODULES = frozenset(vars(nn.Module())) | {"_is_hf_initialized", "_is_initializing"}
_Cache = functools._lru_cache_wrapper


class Surroundings:
    """What the code around a model holds, as it was when this was made."""

    def __init__(self, model: nn.Module) -> None:
        self._former = [(place, place.contents()) for place in _Search(model).around()]

    @property
    def places(self) -> list[Place]:
        """Where it is held."""
        return [place for place, _ in self._former]

    def hold_tensors(self) -> bool:
        """Return whether a container held a tensor; in other places tensors are constants as a rule."""
        leaves = (leaf for place, one in self._former if isinstance(place, Container) for leaf in place.leaves(one))
        return any(is_a(leaf, torch.Tensor) for leaf in leaves)

    @contextlib.contextmanager
    def restored(self) -> Iterator[Callable[[], list[str]]]:
        """Put all back, until the block ends; give a function that returns the names of what the block changed.

        What is added in the block stays: a module that it imports may enter itself in a table, once.
        """
        changed = [(place, former, place.contents()) for place, former in self._former if not place.holds(former)]
        try:
            for place, former, _ in changed:
                place.fill(former)
            with self._empty_caches() as caches:
                begun = [(place, place.contents()) for place, _ in self._former]
                yield lambda: [name for place, one in begun for name in place.changed(one)] + caches()
        finally:
            for place, former, now in changed:
                added = place.added(former, now)
                place.fill(now)
                place.add(added)

    @contextlib.contextmanager
    def _empty_caches(self) -> Iterator[Callable[[], list[str]]]:
        """Put empty caches in place of all; give a function that returns the names of those that got entries."""
        held = [
            (place, name, cache, _emptied(cache))
            for place, _ in self._former
            if isinstance(place, _Names)
            for name, cache in place.contents().items()
            if isinstance(cache, _Cache)
        ]
        for place, name, _, empty in held:
            place.put(name, empty)
        try:
            yield lambda: [place.words_of(name) for place, name, _, empty in held if empty.cache_info().currsize]
        finally:
            for place, name, cache, _ in held:
                place.put(name, cache)


def _emptied(cache: Any) -> Any:
    return functools.update_wrapper(functools.lru_cache(**cache.cache_parameters())(cache.__wrapped__), cache)


class Container:
    """A dict, list, set or deque."""

    def __init__(self, words: str, live: Any) -> None:
        self.words = words
        self.owner = live
        self._live = live

    def contents(self) -> Any:
        """Return a copy."""
        return copy.copy(self._live)

    def holds(self, former: Any) -> bool:
        """Return whether it holds the very objects that its copy has."""
        live = self._live
        if len(live) != len(former):
            return False
        if isinstance(live, dict):
            return all(former[key] is live.get(key, live) for key in former)
        return live == former if isinstance(live, set) else all(map(_is, live, former))

    def fill(self, contents: Any) -> None:
        """Hold what a copy does."""
        contents = copy.copy(contents)
        self._live.clear()
        self.add(contents)

    def add(self, contents: Any) -> None:
        """Hold these objects, too."""
        in_order = isinstance(self._live, list | collections.deque)
        self._live.extend(contents) if in_order else self._live.update(contents)

    def added(self, *before: Any) -> Any:
        """Return what it holds that none of its copies from before does."""
        if isinstance(self._live, dict):
            return {key: value for key, value in self._live.items() if all(key not in one for one in before)}
        known = {id(value) for one in before for value in one}
        return [value for value in self._live if id(value) not in known]

    def put(self, key: Any, value: Any) -> None:
        """Replace what is held at a place."""
        self._live[key] = value

    def changed(self, former: Any) -> list[str]:
        """Return its name, unless it holds what its copy has."""
        return [] if self.holds(former) else [self.words]

    @staticmethod
    def leaves(contents: Any) -> list[Any]:
        """Return what a copy holds, and what containers in it do."""
        return tree_leaves([*(contents.values() if isinstance(contents, dict) else contents)])

    def items(self) -> list[tuple[Any, Any]]:
        """Return what it holds, by place, if that is not much."""
        if len(self._live) > _FEW:
            return []
        return [*(self._live.items() if isinstance(self._live, dict) else enumerate(self._live))]

    def words_of(self, name: Any) -> str:
        """Return how what it holds at a place is called."""
        return _in(self.words, f"{name!r:.30}")


class _Names:
    """The names in a module, a class, an object or a function, and their values."""

    def __init__(
        self, words: str, owner: object, read: Callable[[], Mapping[str, Any]], put: Any = None, drop: Any = None
    ) -> None:
        self.words = words
        self.owner = owner
        self._read = read
        self._put = put
        self._drop = drop

    def contents(self) -> dict[str, Any]:
        return {name: value for name, value in list(self._read().items()) if not name.startswith("__")}

    def holds(self, former: dict[str, Any]) -> bool:
        now = self.contents()
        return now.keys() == former.keys() and all(now[name] is value for name, value in former.items())

    def fill(self, contents: dict[str, Any]) -> None:
        now = self.contents()
        for name in now.keys() - contents.keys():
            looked_at(self._drop, name, otherwise=None)
        self.add({name: value for name, value in contents.items() if now.get(name, self) is not value})

    def add(self, contents: dict[str, Any]) -> None:
        for name, value in contents.items():
            self.put(name, value)

    def put(self, name: str, value: Any) -> None:
        looked_at(self._put, name, value, otherwise=None)

    def added(self, *before: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in self.contents().items() if all(name not in one for one in before)}

    def changed(self, former: dict[str, Any]) -> list[str]:
        return [self.words_of(name) for name, value in self.contents().items() if former.get(name, self) is not value]

    def words_of(self, name: str) -> str:
        """Return how what has a name is called."""
        return _in(self.words, name)

    def items(self) -> list[tuple[str, Any]]:
        return [*self.contents().items()]


Place = Container | _Names
"""Something that holds objects, which can be replaced."""


def _of_dict(words: str, own: dict[str, Any], others: Collection[str] = ()) -> _Names:
    """Return the names in a dict, but for some others."""

    def read() -> dict[str, Any]:
        return {name: value for name, value in own.items() if name not in others}

    return _Names(words, own, read, own.__setitem__, own.pop)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _in(words: str, name: str) -> str:
    """Return how what an object holds is called, from how the object is: ``"global 'table.3'"``."""
    start, quote = (words[:-1], "'") if words.endswith("'") else (words, "")
    return f"{start}{'' if start.endswith(chr(39)) else '.'}{name}{quote}"


class _Search:
    """Finds the places around a model: in its classes, in functions that it holds, in the modules that define them."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [*named_modules(model)]
        modules = [module for _, module in self._modules]
        self._classes = {kind: None for module in modules for kind in type(module).__mro__ if _is_users(home_of(kind))}
        self._held = [value for module in modules for value in (instance_dict(module) or {}).values()]
        homes = dict.fromkeys(home_of(kind) for kind in self._classes)
        imported = [value for home in homes for value in _globals_of(home).values() if isinstance(value, _FUNCTIONS)]
        self._homes = homes | dict.fromkeys(home for value in imported if _is_users(home := str(value.__module__)))
        self._seen: dict[int, Any] = {}

    def around(self) -> Iterator[Place]:
        """Yield each place once."""
        for home in self._homes:
            names = instance_dict(sys.modules.get(home)) or {}
            yield from self._and_inside(_of_dict("global ''", names), 0)
        for kind in self._classes:
            yield from self._at(kind.__name__, kind, 0)
        for value in self._held:
            if isinstance(value, _FUNCTIONS):
                yield from self._at(value.__name__, value, 0)

    def in_model(self) -> Iterator[Place]:
        """Yield the attributes and buffers of each module, and the places in these."""
        for address, module in self._modules:
            own = instance_dict(module) or {}
            yield from self._and_inside(_of_dict(f"attribute '{address}'", own, _OF_MODULES), 0)
            if buffers := own.get("_buffers"):
                yield _of_dict(f"buffer '{address}'", buffers)

    def _at(self, words: str, value: Any, depth: int) -> Iterator[Place]:
        """Yield the places in an object, and in what it holds."""
        if id(value) in self._seen or depth > _DEEPEST:
            return
        self._seen[id(value)] = value
        none: tuple[Place, ...] = ()
        for place in looked_at(self._places_of, words, value, otherwise=none):
            yield from self._and_inside(place, depth + 1)

    def _and_inside(self, place: Place, depth: int) -> Iterator[Place]:
        yield place
        for name, item in place.items():
            yield from self._at(place.words_of(name), item, depth)

    def _places_of(self, words: str, value: Any) -> tuple[Place, ...]:
        """Return the places that an object is itself: none where it is not users' code, or not small."""
        if type(value) in _KINDS:
            return (Container(words, value),) if len(value) < _MOST_ITEMS else ()
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if type(value) is types.FunctionType:
            return _places_of_function(value) if str(value.__module__) in self._homes else ()
        if is_a(value, type):
            is_of_model = value in self._classes or home_of(value) in self._homes
            put, drop = partial(type.__setattr__, value), partial(type.__delattr__, value)
            return (_Names(value.__name__, value, lambda: _CLASS_DICT(value), put, drop),) if is_of_model else ()
        own = None if is_a(value, (nn.Module, torch.Tensor, types.ModuleType)) else instance_dict(value)
        if own is None or not _is_users(home_of(type(value))):
            return ()
        return (_of_dict(words, own),)


_FUNCTIONS = (types.FunctionType, _Cache)
_CLASS_DICT: Any = type.__dict__["__dict__"].__get__


def _places_of_function(function: types.FunctionType) -> tuple[Place, ...]:
    """Return the places of a function's attributes, of its defaults, and of what it has from the one around it."""
    own, cells = vars(function), dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    defaults = {
        **dict(zip(map(str, range(99)), function.__defaults__ or (), strict=False)),
        **(function.__kwdefaults__ or {}),
    }

    def put(name: str, value: Any) -> None:
        cells[name].cell_contents = value

    def read() -> dict[str, Any]:
        empty: tuple[Any, ...] = ()
        found = {name: looked_at(_contents_of, cell, otherwise=empty) for name, cell in cells.items()}
        return {name: value for name, filled in found.items() for value in filled}

    words = function.__name__
    places = [_of_dict(words, own)]
    if cells:
        places.append(_Names(words, function.__closure__, read, put))
    if defaults:
        places.append(_Names(words, defaults, lambda: defaults))
    return tuple(places)


def _contents_of(cell: types.CellType) -> tuple[Any, ...]:
    return (cell.cell_contents,)  # it raises if it is empty


def places_in(model: nn.Module) -> list[Place]:
    """Return where a model holds objects: attributes and buffers, containers and objects in these."""
    return [*_Search(model).in_model()]


def _is_users(home: str) -> bool:
    return home.partition(".")[0] not in ("torch", "builtins", *sys.stdlib_module_names)


def _globals_of(home: str) -> dict[str, Any]:
    own = instance_dict(sys.modules.get(home)) or {}
    return {name: value for name, value in own.items() if not name.startswith("__")}
