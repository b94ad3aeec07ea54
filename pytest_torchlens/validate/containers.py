"""Takes a snapshot of all objects that can be reached from a model and its inputs, and restores it.

`ObjectGraph` walks from object to object.  For each kind of container (dict, list, closure, class, ...) one function
returns a `ContainerSnapshot`: the parts to walk to next, and how to restore them.  Tensors are only listed; `state`
copies them.  Objects with an internal state (files, iterators, random generators) are in `resources`.
"""

from __future__ import annotations

import gc
import operator
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections import defaultdict
from collections import deque
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from functools import partial
from functools import partialmethod
from itertools import chain
from itertools import repeat
from typing import Any
from typing import NamedTuple

import numpy as np
import torch

from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.looks import dict_getter
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import looked_at
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.origins import script_attributes
from pytest_torchlens.validate import resources

Parts = list[tuple[Any, Any]]
"""Names and values of an object's parts."""
Path = tuple[Any, ...]
"""The path of the container and the name inside it; for a root, its name alone."""


class ContainerSnapshot(NamedTuple):
    """The current parts of an object, and a function that restores them; None if it is immutable."""

    parts: Parts
    restore: Callable[[], None] | None = None


_NOT_LOOKED_AT = ContainerSnapshot([])
_ATOMS = ATOMS - {type, type(lambda: None), torch.Generator}
_OF_TORCH = ("", "_parameters", "_buffers", "_modules")


class ObjectGraph:
    """A snapshot of all objects that can be reached from some roots.

    Parameters
    ----------
    roots
        The roots by readable names: ``{"attribute": model, "input": {0: x}}``.

    Attributes
    ----------
    tensors
        The tensors that were reached, with their paths; their values are not saved here.
    """

    def __init__(self, roots: dict[str, Any]) -> None:
        self.tensors: list[tuple[Path, torch.Tensor]] = []
        self._containers: list[tuple[Path, Any, Callable[[], None]]] = []
        self._empty = EmptyContainers()
        self._mappings = {kind: Mappings(kind) for kind in (OrderedDict, dict)}
        self._resources: list[tuple[Path, Any, resources.RestoreState]] = []
        self._lost: list[tuple[Path, Any]] = []
        self._used_up: list[tuple[Path, Any, Any]] = []
        self._kinds: dict[type, _Kind] = {}
        seen: dict[int, Any] = {}
        ahead: list[tuple[Path, Any]] = [((name,), root) for name, root in roots.items()]
        while ahead:  # no recursion: users' objects may be long linked lists
            path, value = ahead.pop()
            if id(value) not in seen:
                seen[id(value)] = value
                parts: Parts = looked_at(self._note, path, value, otherwise=[])
                ahead += [((path, name), part) for name, part in self._empty.without(parts)]

    def _note(self, path: Path, value: Any) -> Parts:
        """Take a snapshot of a value, and return its parts."""
        kind = self._kinds.get(type(value)) or self._kinds.setdefault(type(value), _Kind(type(value)))
        if kind.is_tensor:
            self.tensors.append((path, value))
            return [("", kind.dict_of(value))]
        if kind.may_be_used_up and resources.is_used_up(value):
            self._used_up.append((path, value, resources.progress(value)))
            return []
        for note_state in kind.resources:
            restore = looked_at(note_state, value, otherwise=None)
            if restore is not None:
                self._resources.append((path, value, restore))
        parts: Parts = looked_at(self._mappings[kind.mapping].note, path, value, otherwise=[]) if kind.mapping else []
        if kind.instances:
            parts += looked_at(kind.instances.note, path, value, otherwise=[])
        for note in kind.containers:
            snapshot = looked_at(note, value, otherwise=_NOT_LOOKED_AT)
            parts += snapshot.parts
            if snapshot.restore is not None:
                self._containers.append((path, value, snapshot.restore))
        return parts

    def restore(self) -> None:
        """Restore all containers; classes come before their instances, whose layout depends on their bases."""
        self._lost = [
            (path, value)
            for path, value, restore in self._containers
            if not looked_at(_has_restored, restore, otherwise=False)
        ]
        instances = [kind.instances for kind in self._kinds.values() if kind.instances]
        self._lost += [entry for alike in instances for entry in alike.restore()]
        self._lost += [entry for mappings in self._mappings.values() for entry in mappings.restore()]
        self._empty.restore()

    def restore_states(self) -> list[str]:
        """Restore all resources; return the names of those, and of containers, that could not be restored."""
        lost = [(path, value) for path, value, restore in self._resources if not looked_at(restore, otherwise=False)]
        return [object_name(path, value) for path, value in self._lost + lost]

    def single_use(self, root: str) -> list[str]:
        """Return the names of objects under a root that can be read only once."""
        return [object_name(path, value) for path, value, _ in self._used_up if _root(path) == root]

    def used_up(self, maybe: bool = False) -> list[str]:
        """Return the names of single-use objects read since; with `maybe`, those that may have been too."""
        read = [(path, value, (at, resources.progress(value))) for path, value, at in self._used_up]
        return [object_name(path, value) for path, value, (at, now) in read if at != now or (maybe and at is None)]


def _has_restored(restore: Callable[[], None]) -> bool:
    restore()
    return True


def _root(path: Path) -> Any:
    while len(path) > 1:
        path = path[0]
    return path[0]


def object_name(path: Path, value: Any) -> str:
    """Return a readable name with the class: ``"attribute 'head.cache' (dict)"``."""
    names = []
    root = path
    while len(root) > 1:
        root, name = root
        name = str(name) if isinstance(name, str | int) else type(name).__name__
        names += [] if name in _OF_TORCH else [name]
    return f"{root[0]} {'.'.join(reversed(names))!r} ({type(value).__name__})"


class _Kind:
    """What to look at in the objects of a class."""

    def __init__(self, kind: type) -> None:
        self.is_tensor = issubclass(kind, torch.Tensor)
        self.dict_of = dict_getter(kind)
        self.may_be_used_up = resources.may_be_used_up(kind)
        self.resources = resources.kinds_of(kind)
        self.mapping: Any = next((base for base in (OrderedDict, dict) if issubclass(kind, base)), None)
        self.containers = [note for kinds, note in _KINDS if issubclass(kind, kinds)]
        self.instances = looked_at(Instances, kind, otherwise=None) if _is_instance_kind(kind) else None


def _is_instance_kind(kind: type) -> bool:
    """Return whether objects of a class are modules or the user's data, not code or runtime machinery."""
    if issubclass(kind, torch.nn.Module):
        return not issubclass(kind, torch.jit.ScriptModule)
    if issubclass(kind, threading.local):
        return True
    home = f"{home_of(kind)}."
    own = home.partition(".")[0] not in _MACHINERY or home.startswith(_DATA_OF_TORCH)
    return own and not issubclass(kind, types.ModuleType | type | types.FunctionType)


def _is_own(name: Any) -> bool:
    """Return whether a module of that name belongs to neither PyTorch nor Python."""
    top = str(name).partition(".")[0]
    return top != "torch" and top not in sys.stdlib_module_names


# locks, threads, loggers, compilers: internal state that a model does not own
_MACHINERY = {"torch", "threading", "concurrent", "logging", "builtins", "_thread", "weakref", "io", "_io", "itertools"}
_MACHINERY |= {"asyncio", "multiprocessing", "importlib", "inspect", "_queue"}
_DATA_OF_TORCH = tuple(
    f"torch.{name}."
    for name in ("optim", "amp", "distributions", "distributed.fsdp", "quasirandom", "nn", "ao", "utils.data")
)


# The base class's methods are called: a subclass may load, forbid or count accesses.


class Mappings:
    """Snapshots of all mappings of a kind: their items in order.

    A model has some twenty of them a module, and nearly all stay as they are: they are compared at once, in C.

    Parameters
    ----------
    kind
        ``dict`` or ``OrderedDict``, whose own methods are called.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._paths: list[Path] = []
        self._mappings: list[Any] = []
        self._former: list[dict[Any, Any]] = []

    def note(self, path: Path, value: Any) -> Parts:
        """Take a snapshot of a mapping, and return its parts; keys may have parts too."""
        former = dict.copy(value) if self._kind is dict else dict(self._kind.items(value))  # 60 times as fast
        self._paths.append(path)
        self._mappings.append(value)
        self._former.append(former)
        return [*former.items(), *[(key, key) for key in former if type(key) is not str]]

    def restore(self) -> list[tuple[Path, Any]]:
        """Restore all that were changed; return those that could not be restored."""
        if looked_at(self._are_same, otherwise=False):
            return []
        entries = zip(self._paths, self._mappings, self._former, strict=True)
        return [
            (path, value)
            for path, value, former in entries
            if not looked_at(self._restored, value, former, otherwise=False)
        ]

    def _are_same(self) -> bool:
        """Return whether all have identical keys and values in the same order; ``==`` may be overridden."""
        sizes = map(operator.eq, map(self._kind.__len__, self._mappings), map(len, self._former))
        keys = map(operator.is_, _all(self._kind.keys, self._mappings), _all(dict.keys, self._former))
        values = map(operator.is_, _all(self._kind.values, self._mappings), _all(dict.values, self._former))
        return all(sizes) and all(keys) and all(values)

    def _restored(self, value: Any, former: dict[Any, Any]) -> bool:
        kind = self._kind
        if not (_is_same(kind.keys(value), former.keys()) and _is_same(kind.values(value), former.values())):
            kind.clear(value)
            for key, item in former.items():
                kind.__setitem__(value, key, item)
        return True


class EmptyContainers:
    """Plain containers that hold nothing, as most of a module's twelve tables of hooks do: looked at in bulk."""

    def __init__(self) -> None:
        self._containers: list[Any] = []
        self._with_dict: list[Any] = []
        """Those of them that may have a ``__dict__``; an empty one has a reference to nothing else."""

    def without(self, parts: Parts) -> Parts:
        """Note those parts that are plain containers which hold nothing, and have no attributes; return the others.

        Atoms and tuples of them, which hold nothing that may change, are left out too.
        """
        parts = [part for part in parts if type(part[1]) not in _ATOMS and not _is_of_atoms(part[1])]
        others = [part for part in parts if type(part[1]) not in _PLAIN or part[1]]
        if len(others) == len(parts):
            return others
        empty = [value for _, value in parts if type(value) in _PLAIN and not value]
        with_dict = [value for value in empty if type(value) is OrderedDict]
        if with_dict and gc.get_referents(*with_dict):
            full = set(map(id, filter(gc.get_referents, with_dict)))
            others = [part for part in parts if type(part[1]) not in _PLAIN or part[1] or id(part[1]) in full]
            empty, with_dict = ([value for value in each if id(value) not in full] for each in (empty, with_dict))
        self._containers += empty
        self._with_dict += with_dict
        return others

    def restore(self) -> None:
        """Empty those that hold something now."""
        if any(map(len, self._containers)) or gc.get_referents(*self._with_dict):
            for value in self._containers:
                value.clear()
            for value in self._with_dict:
                vars(value).clear()


def _is_of_atoms(value: Any) -> bool:
    """Return whether a value is a plain tuple that holds only atoms, as the sizes of a kernel."""
    return type(value) is tuple and _ATOMS.issuperset(map(type, value))


_PLAIN = frozenset([dict, OrderedDict, list, set])


class Instances:
    """Snapshots of all instances of one class: their class, ``__dict__`` and slots.

    Parameters
    ----------
    kind
        The class.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._dict_of = dict_getter(kind)
        kinds = [base for base in kind.__mro__ if "__slots__" in vars(base)]
        slots = [slot for base in kinds for slot in vars(base).values() if type(slot) is types.MemberDescriptorType]
        self._slots: list[types.MemberDescriptorType] = slots
        self._paths: list[Path] = []
        self._instances: list[Any] = []
        self._dicts: list[dict[str, Any] | None] = []
        self._contents: list[list[tuple[Any, ...]]] = []

    def note(self, path: Path, value: Any) -> Parts:
        """Take a snapshot of an instance, and return its parts."""
        attributes = self._dict_of(value)
        contents = [_slot_value(slot, value) for slot in self._slots]
        self._paths.append(path)
        self._instances.append(value)
        self._dicts.append(attributes)
        self._contents.append(contents)
        in_slots = zip(self._slots, contents, strict=True)
        return [
            ("", attributes),
            ("", self._kind),
            *((slot.__name__, item) for slot, items in in_slots for item in items),
        ]

    def restore(self) -> list[tuple[Path, Any]]:
        """Restore all that were changed; return those that could not be restored."""
        if not self._slots and looked_at(self._have_same_dicts, otherwise=False):
            return []
        entries = zip(self._paths, self._instances, self._dicts, self._contents, strict=True)
        return [
            (path, value)
            for path, value, attributes, contents in entries
            if not looked_at(self._restored, value, attributes, contents, otherwise=False)
        ]

    def _have_same_dicts(self) -> bool:
        """Return whether all have the class and the ``__dict__`` that they had; its items are noted as a mapping."""
        kinds = map(operator.is_, map(type, self._instances), repeat(self._kind))
        return all(kinds) and all(map(operator.is_, map(self._dict_of, self._instances), self._dicts))

    def _restored(self, value: Any, attributes: dict[str, Any] | None, contents: list[tuple[Any, ...]]) -> bool:
        if type(value) is not self._kind:
            object.__setattr__(value, "__class__", self._kind)
        if self._dict_of(value) is not attributes:
            object.__setattr__(value, "__dict__", attributes)
        for slot, former in zip(self._slots, contents, strict=True):
            _restore_slot(slot, value, former)
        return True


def _all(look: Callable[[Any], Iterable[Any]], mappings: list[Any]) -> Iterator[Any]:
    return chain.from_iterable(map(look, mappings))


def _is_same(now: Collection[Any], former: Collection[Any]) -> bool:
    """Return whether both have identical objects in the same order; ``==`` may be overridden."""
    return len(now) == len(former) and all(map(operator.is_, now, former))


def sequence(value: Any) -> ContainerSnapshot:
    """Snapshot a list, a deque or a set: its items in order."""
    kind: Any = next(kind for kind in (list, deque, set) if is_a(value, kind))
    former = list(kind.__iter__(value))
    return ContainerSnapshot(list(enumerate(former)), partial(_restore_sequence, kind, value, former))


def _restore_sequence(kind: Any, value: Any, former: list[Any]) -> None:
    now = list(kind.__iter__(value))
    if not _is_same(now, former):
        kind.clear(value)
        (set.update if kind is set else kind.extend)(value, former)


def immutable(value: Any) -> ContainerSnapshot:
    """Snapshot an immutable container, whose items may be mutable."""
    kind: Any = tuple if is_a(value, tuple) else frozenset
    return ContainerSnapshot(list(enumerate(kind.__iter__(value))))


def object_array(value: np.ndarray[Any, Any]) -> ContainerSnapshot:
    """Snapshot an array of objects."""
    return ContainerSnapshot(list(enumerate(np.ndarray.ravel(value).tolist())) if value.dtype == object else [])


def weak_container(value: Any) -> ContainerSnapshot:
    """Snapshot a weak container: entries that died meanwhile are not restored."""
    kind: Any = next(kind for kind in _WEAK if is_a(value, kind))
    former = kind.copy(value)

    def restore() -> None:
        if not _is_same(*(list(chain.from_iterable(_weak_entries(one))) for one in (value, former))):
            kind.clear(value)
            kind.update(value, former)

    return ContainerSnapshot([("", item) for entry in _weak_entries(value) for item in entry], restore)


def _weak_entries(value: Any) -> list[tuple[Any, ...]]:
    return list(zip(value, strict=False)) if is_a(value, weakref.WeakSet) else list(value.items())


def script_module(value: torch.jit.ScriptModule) -> ContainerSnapshot:
    """Snapshot a scripted module: its parts, and the attributes that its methods assign."""
    parts = [(name, part) for name, part in named_modules(value) if part is not value]
    former, mode = script_attributes(value), getattr(value, "training", None)

    def restore() -> None:
        for name, attribute in former:
            value._c.setattr(name, attribute)
        if mode is not None:
            value.training = mode

    return ContainerSnapshot([*parts, *named_parameters(value), *named_buffers(value), *former], restore)


def _slot_value(slot: types.MemberDescriptorType, value: Any) -> tuple[Any, ...]:
    """Return the value of a slot in a tuple; an empty one if the slot is."""
    try:
        return (slot.__get__(value, type(value)),)
    except AttributeError:
        return ()


def _restore_slot(slot: types.MemberDescriptorType, value: Any, former: tuple[Any, ...]) -> None:
    now = _slot_value(slot, value)
    if former and not (now and now[0] is former[0]):
        slot.__set__(value, former[0])
    elif now and not former:
        slot.__delete__(value)


def function(value: Any) -> ContainerSnapshot:
    """Snapshot a function: its code, closure, default arguments and attributes."""
    if not _is_own(value.__globals__.get("__name__")):
        return ContainerSnapshot([])
    facts = [(name, getattr(value, name)) for name in ("__code__", "__defaults__", "__kwdefaults__")]
    cells = list(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
    former = [(name, cell, _cell_value(cell)) for name, cell in cells]

    def restore() -> None:
        _set_changed(value, facts)
        for _, cell, contents in former:
            if contents and cell.cell_contents is not contents[0]:
                cell.cell_contents = contents[0]

    enclosed = [(name, contents[0]) for name, _, contents in former if contents]
    return ContainerSnapshot(
        [*enclosed, ("", value.__defaults__), ("", value.__kwdefaults__), ("", vars(value))], restore
    )


def _set_changed(value: Any, former: list[tuple[str, Any]]) -> None:
    """Set each attribute that is another object than formerly."""
    for name, item in former:
        if getattr(value, name) is not item:
            setattr(value, name, item)


def _cell_value(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


_LEADS_TO: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__self__", "__func__"),
    types.BuiltinFunctionType: ("__self__",),
    types.MethodWrapperType: ("__self__",),
    partialmethod: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget",),
    _lru_cache_wrapper: ("__wrapped__",),
}


def wrapper(value: Any) -> ContainerSnapshot:
    """Snapshot a wrapper of a function: bound method, partial, decorator."""
    names = next(names for kind, names in _LEADS_TO.items() if is_a(value, kind))
    return ContainerSnapshot([("", getattr(value, name)) for name in names])


def partial_function(value: Any) -> ContainerSnapshot:
    """Snapshot a `functools.partial`: the function and its arguments, which ``__setstate__`` replaces."""
    func, args, keywords, attributes = value.func, value.args, value.keywords, instance_dict(value)
    former = (func, args, keywords)

    def restore() -> None:
        if not _is_same((value.func, value.args, value.keywords), former):
            partial.__setstate__(value, (*former, attributes))  # type: ignore[attr-defined]

    return ContainerSnapshot([("", func), ("", args), ("", keywords)], restore)


def default_factory(value: Any) -> ContainerSnapshot:
    """Snapshot what makes the missing items of a ``defaultdict``."""
    slot: Any = defaultdict.__dict__["default_factory"]
    former = slot.__get__(value)
    return ContainerSnapshot([("default_factory", former)], lambda: slot.__set__(value, former))


def class_(value: Any) -> ContainerSnapshot:
    """Snapshot the attributes of a class, unless it belongs to PyTorch or Python."""
    if not _is_own(value.__module__):
        return ContainerSnapshot([])
    former, all_former = _class_attributes(value), dict(vars(value))
    bases = value.__bases__

    def restore() -> None:
        if value.__bases__ is not bases:
            type.__setattr__(value, "__bases__", bases)
        now = vars(value)
        if _is_same(now.keys(), all_former.keys()) and _is_same(now.values(), all_former.values()):
            return
        for name in _class_attributes(value).keys() - former.keys():
            type.__delattr__(value, name)
        for name, attribute in former.items():
            if vars(value).get(name) is not attribute:
                type.__setattr__(value, name, attribute)

    return ContainerSnapshot([*former.items(), *(("", base) for base in (type(value), *bases))], restore)


def _class_attributes(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("__") or name == "__doc__"}


_WEAK = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_KINDS: tuple[tuple[tuple[type, ...], Callable[[Any], ContainerSnapshot]], ...] = (
    ((list, deque, set), sequence),
    ((tuple, frozenset), immutable),
    ((np.ndarray,), object_array),
    (_WEAK, weak_container),
    ((torch.jit.ScriptModule,), script_module),
    ((types.FunctionType,), function),
    ((partial,), partial_function),
    ((defaultdict,), default_factory),
    (tuple(_LEADS_TO), wrapper),
    ((type,), class_),
)
