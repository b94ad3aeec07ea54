"""Finds the tensors inside nested arguments and results, in a fixed order, and rebuilds the structure with others."""

from __future__ import annotations

import copy
import dataclasses
import operator
import types
from collections import UserDict
from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.utils import _pytree as pytree

from pytest_torchlens.capture.looks import class_attribute
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import looked_at

ATOMS = frozenset(
    [
        *(int, float, bool, complex, str, bytes, type(None), type(...), type, types.FunctionType),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.Generator),
    ]
)


def walk(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield ``(path, tensor)`` for each tensor in `value`, duplicates included.

    Looks into lists, tuples, mappings, slices, dataclasses, other pytree nodes and objects with plain attributes; a
    path is dotted: ``"0.keys.1"``.  Each container is entered once, by the first path to it: objects may reference each
    other, and themselves.
    """
    return ((path, item) for path, item in walk_all(value, path) if is_a(item, torch.Tensor))


def walk_all(value: Any, path: str = "", containers: dict[str, str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield path and object for `value` and everything inside it, in the order of `walk`.

    `containers` receives the path of the container of each object, by the path of the object.
    """
    entered: dict[int, Any] = {}
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if not is_a(value, torch.Tensor) and type(value) not in ATOMS and id(value) not in entered:
            entered[id(value)] = value  # keeps the object alive, because Python reuses ids
            inside = [(_inner_path(path, key), item) for key, item in children(value)]
            waiting += reversed(inside)
            if containers is not None:
                containers.update((inner, path) for inner, _ in inside)


def _inner_path(path: str, key: Any) -> str:
    name = str(key) if type(key) in ATOMS else looked_at(str, key, otherwise=type(key).__name__)
    return f"{path}.{name}" if path else name


def kinds(value: Any) -> dict[str, str]:
    """Return the kind of each tensor in `value`, and of each container around one: ``"tensor"``, ``"dict of 2"``."""
    containers: dict[str, str] = {}
    items = list(walk_all(value, containers=containers))
    with_tensors = {""}
    for inner in [path for path, item in items if is_a(item, torch.Tensor)]:
        path = inner
        while path not in with_tensors:
            with_tensors.add(path)
            path = containers[path]
    return {path: _kind(item) for path, item in items if path in with_tensors}


def _kind(value: Any) -> str:
    if is_a(value, torch.Tensor):
        return "tensor"
    length = f" of {len(value)}" if is_a(value, (dict, list, tuple)) else ""
    return f"{type(value).__name__}{length}"


def children(value: Any) -> list[tuple[Any, Any]]:
    """Return the named parts of a container; nothing for any other object, or one that cannot be looked at."""
    return looked_at(_children, value, otherwise=[])


def _children(value: Any) -> list[tuple[Any, Any]]:
    if (items_of := _ITEMS_BY_TYPE.get(type(value))) is not None:
        return items_of(value)
    for kind, items in _ITEMS:
        if is_a(value, kind):
            return items(value)
    if is_a(value, slice):
        return [("start", value.start), ("stop", value.stop), ("step", value.step)]
    if class_attribute(type(value), "__dataclass_fields__") is not None:
        return [(field.name, _attribute(value, field.name)) for field in dataclasses.fields(type(value))]
    if type(value) in pytree.SUPPORTED_NODES:
        return list(enumerate(pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]))
    if home_of(type(value)) == "collections":
        return list(enumerate(value))
    return _attributes(value)


# the base class's methods are called: a method of a subclass may load data, draw numbers or count accesses
_ITEMS: tuple[tuple[type, Callable[[Any], list[tuple[Any, Any]]]], ...] = (
    (dict, lambda value: list(dict.items(value))),
    (UserDict, lambda value: list(dict.items(value.data))),
    (types.MappingProxyType, lambda value: list(value.items())),
    (list, lambda value: list(enumerate(list.__iter__(value)))),
    (tuple, lambda value: list(enumerate(tuple.__iter__(value)))),
    (set, lambda value: list(enumerate(set.__iter__(value)))),
    (frozenset, lambda value: list(enumerate(frozenset.__iter__(value)))),
)


def _attribute(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except Exception:  # noqa: BLE001 - a descriptor is user code
        return None


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the slots and the ``__dict__`` entries of a plain object; nothing for modules and code."""
    if is_a(value, (torch.nn.Module, types.ModuleType, type)) or callable(value):
        return []
    return attributes(value)


def attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the slots and the ``__dict__`` entries of an object."""
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    return [(name, _attribute(value, name)) for name in slots] + list((instance_dict(value) or {}).items())


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("__"))


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class UnpackedObject:
    """An object with tensors inside, taken apart in the recorded arguments of a call.

    Attributes
    ----------
    original
        The object.
    parts
        The converted `children` of the object, by name.
    """

    original: Any
    parts: dict[Any, Any]

    def __repr__(self) -> str:
        """Return the name of the object's class: the object's own text may contain whole tensors."""
        return f"{type(self.original).__name__}(...)"

    def repacked(self, convert: Callable[[Any], Any], already: dict[int, Any]) -> Any:
        """Return a copy of the object with ``convert(child)`` for each of its parts; itself if it cannot be copied.

        `already` has the copies made so far, by the `id` of the unpacked object: objects may reference each other.
        """
        if id(self) not in already:
            other = already[id(self)] = _shallow_copy(self.original)
            parts = {key: substitute(value, convert) for key, value in self.parts.items()}
            already[id(self)] = _with_parts(other, parts, self.original)
        return already[id(self)]


_ITEMS_BY_TYPE: dict[type, Callable[[Any], list[tuple[Any, Any]]]] = {
    dict: lambda value: list(value.items()),
    list: lambda value: list(enumerate(value)),
    tuple: lambda value: list(enumerate(value)),
    UnpackedObject: lambda value: list(value.parts.items()),
}


def unpacked(value: Any, convert: Callable[[Any], Any], already: dict[int, UnpackedObject]) -> Any:
    """Return an object as `UnpackedObject`, with ``convert(child)`` for its parts; itself if it has no tensors inside.

    `already` has the objects unpacked before, by `id`: objects may reference each other, and themselves.
    """
    if id(value) in already:
        return already[id(value)]
    if next(walk(value), None) is None:
        return value
    whole = already[id(value)] = UnpackedObject(value, {})
    whole.parts.update({key: convert(item) for key, item in children(value)})
    return whole


def _shallow_copy(thing: Any) -> Any:
    try:
        return copy.copy(thing)
    except Exception:  # noqa: BLE001 - it runs user code
        return thing


def _with_parts(other: Any, parts: dict[Any, Any], thing: Any) -> Any:
    """Set the parts of the copy and return it; return the original object if that raises."""
    try:
        return _like(other, parts, thing)
    except Exception:  # noqa: BLE001 - as above
        return thing


def _like(other: Any, parts: dict[Any, Any], thing: Any) -> Any:
    kind = type(thing)
    if kind in pytree.SUPPORTED_NODES and not isinstance(thing, Mapping):
        node = pytree.SUPPORTED_NODES[kind]
        return node.unflatten_fn(list(parts.values()), node.flatten_fn(thing)[1])
    if isinstance(thing, set | frozenset):
        return kind(parts.values())
    if other is thing:
        return thing
    if isinstance(thing, Mapping):
        for key, item in parts.items():
            other[key] = item
    elif isinstance(thing, deque):
        other.clear()
        other.extend(parts.values())
    else:
        for name, item in parts.items():
            object.__setattr__(other, name, item)
    return other


def substitute(value: Any, swap: Callable[[Any], Any]) -> Any:
    """Return `value` with ``swap(leaf)`` in place of each leaf of its lists, tuples, dicts and slices."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([substitute(item, swap) for item in value])
    if kind is dict:
        return {key: substitute(item, swap) for key, item in value.items()}
    if kind is slice:
        return slice(*(substitute(part, swap) for part in (value.start, value.stop, value.step)))
    if is_a(value, (list, tuple, dict)) and kind is not torch.Size:
        return _of_same_class(value, [substitute(item, swap) for _, item in children(value)])
    return swap(value)


def _of_same_class(value: Any, items: list[Any]) -> Any:
    """Return an object of the same class with other items; a plain dict, list or tuple if the class prevents that."""
    try:
        other = _rebuilt(value, items)
    except Exception:  # noqa: BLE001 - the constructor is user code
        other = None
    inside = [] if other is None else [item for _, item in children(other)]
    if other is not None and len(inside) == len(items) and all(map(operator.is_, inside, items)):
        return other
    if isinstance(value, dict):
        return dict(zip(value, items, strict=True))
    return tuple(items) if isinstance(value, tuple) else items


def _rebuilt(value: Any, items: list[Any]) -> Any:
    if isinstance(value, dict):
        other = value.copy()
        for key, item in zip(value, items, strict=True):  # not update(), which the outputs of transformers forbid
            other[key] = item
        return other
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def tensors(value: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors in `value`, duplicates included, in the order of `walk`."""
    kind = type(value)
    if kind is torch.Tensor:
        return (value,)
    if kind in ATOMS:
        return ()
    if (kind is tuple or kind is list) and _TENSORS_AND_ATOMS.issuperset(map(type, value)):
        return tuple([item for item in value if type(item) in _TENSORS])
    return tuple([tensor for _, tensor in walk(value)])


_TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])
_TENSORS_AND_ATOMS = ATOMS | _TENSORS


def is_lazy(tensor: torch.Tensor) -> bool:
    """Return whether a parameter or buffer gets its shape only from the first input."""
    return isinstance(tensor, UninitializedTensorMixin)  # this class has no `__instancecheck__`: fast
