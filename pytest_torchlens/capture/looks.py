"""Looks at users' objects without running their code: no attribute is asked for that a class may compute or forward.

An object may forward its attributes to another one, compute its ``__dict__`` or its class, raise for every name, or
hide a method of `torch.nn.Module` under an attribute.  `looked_at` is the guard around looks that may still raise.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import TypeVar

import torch

_T = TypeVar("_T")
_STORED = (types.GetSetDescriptorType, types.MemberDescriptorType)
_MRO: Any = type.__dict__["__mro__"]
_CLASS_DICT: Any = type.__dict__["__dict__"]
_CLASS_MODULE: Any = type.__dict__["__module__"]


def looked_at(look: Callable[..., _T], *objects: Any, otherwise: _T) -> _T:
    """Return ``look(*objects)``; `otherwise` if that raises, as users' code may."""
    try:
        return look(*objects)
    except Exception:  # noqa: BLE001 - a user's object may raise anything
        return otherwise


def is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Return whether the class of an object is one of `kinds`, or derived from one.

    `isinstance` also believes the object's ``__class__``, which proxies forward and mocks set.
    """
    return issubclass(type(value), kinds)


def instance_dict(value: Any) -> dict[str, Any] | None:
    """Return the real ``__dict__`` of an object; None if it has none, or its class computes one."""
    return dict_getter(type(value))(value)


def dict_getter(kind: type) -> Callable[[Any], dict[str, Any] | None]:
    """Return a function that returns the real ``__dict__`` of an object of class `kind`, as `instance_dict` does."""
    if issubclass(kind, threading.local):
        return _dict_of_thread
    for base in _MRO.__get__(kind):
        found = _CLASS_DICT.__get__(base).get("__dict__")
        if found is not None:
            return found.__get__ if type(found) in _STORED else _no_dict
    return _no_dict


def _dict_of_thread(value: Any) -> dict[str, Any]:
    return threading.local.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]


def _no_dict(_: Any) -> None:
    return None


def class_attribute(kind: type, name: str) -> Any:
    """Return an attribute of a class as it is stored there or in a base class; None if there is none."""
    members = (_CLASS_DICT.__get__(base) for base in _MRO.__get__(kind))
    return next((one[name] for one in members if name in one), None)


def home_of(kind: type) -> str:
    """Return the name of the module that defines a class; ``""`` if the class has none, or hides it."""
    name = looked_at(_CLASS_MODULE.__get__, kind, otherwise="")
    return name if type(name) is str else ""


# -- modules, whose own attributes may hide methods: `self.modules = [...]` --------------------------------------------


def named_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield address and module as ``torch.nn.Module.named_modules`` does: each module once."""
    entered: set[int] = set()
    ahead = [("", model)]
    while ahead:
        address, module = ahead.pop()
        if id(module) not in entered:
            entered.add(id(module))
            yield address, module
            if inside := _members(module, "_modules"):
                prefix = f"{address}." if address else ""
                ahead += [(prefix + name, part) for name, part in reversed(inside)]


def named_parameters(model: torch.nn.Module, *, duplicates: bool = False) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield name and parameter; one of several names, unless `duplicates` are wanted."""
    return named_tensors(_modules_of(model, duplicates), "_parameters", duplicates=duplicates)


def named_buffers(model: torch.nn.Module, *, duplicates: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and buffer; one of several names, unless `duplicates` are wanted."""
    return named_tensors(_modules_of(model, duplicates), "_buffers", duplicates=duplicates)


def own_method(model: torch.nn.Module, name: str) -> Callable[..., Any]:
    """Return a method of a module's class, to call with the module; that of `torch.nn.Module` if something hides it."""
    method = class_attribute(type(model), name)
    return method if callable(method) else getattr(torch.nn.Module, name)  # type: ignore[no-any-return]


def named_tensors(
    modules: Iterable[tuple[str, torch.nn.Module]], kind: str, *, duplicates: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield name and tensor of all ``"_parameters"`` or ``"_buffers"`` that modules hold, as for a whole model."""
    seen: set[int] = set()
    for address, module in modules:
        for name, tensor in _members(module, kind):
            if duplicates or id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{address}.{name}" if address else name, tensor


def _modules_of(model: torch.nn.Module, duplicates: bool) -> Iterator[tuple[str, torch.nn.Module]]:
    return _all_named_modules(model) if duplicates else named_modules(model)


def _all_named_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield every address of every module; a module inside itself ends its address."""
    ahead: list[tuple[str, torch.nn.Module, frozenset[int]]] = [("", model, frozenset())]
    while ahead:
        address, module, around = ahead.pop()
        yield address, module
        inside, prefix = around | {id(module)}, f"{address}." if address else ""
        parts = [(prefix + name, part, inside) for name, part in _members(module, "_modules")]
        ahead += [entry for entry in reversed(parts) if id(entry[1]) not in inside]


def _members(module: torch.nn.Module, kind: str) -> list[tuple[str, Any]]:
    own = _MODULE_DICT(module) if issubclass(type(module), _Module) else instance_dict(module) or {}
    if _TRACED in own:
        own = instance_dict(own[_TRACED]) or own
    members = own.get(kind)  # a module whose constructor did not finish has none
    return [item for item in members.items() if item[1] is not None] if members else []


_Module = torch.nn.Module
_MODULE_DICT: Callable[[torch.nn.Module], dict[str, Any]] = torch.nn.Module.__dict__["__dict__"].__get__
"""Returns the real ``__dict__`` of a module, also where its class computes one."""
_TRACED = "_actual_script_module"
"""Attribute of a module that `torch.jit.trace` made: it holds the members."""


def may_run_users_code(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a function may ask an object of the user's for numbers, also one in a tuple, list or slice."""
    return name in _OF_OBJECTS and any(map(_is_of_user, (*args, *kwargs.values())))


def _is_of_user(arg: Any) -> bool:
    inside = (arg.start, arg.stop, arg.step) if type(arg) is slice else arg if type(arg) in (tuple, list) else ()
    return any(map(_is_of_user, inside)) or home_of(type(arg)).partition(".")[0] not in _PLAIN_HOMES


_OF_OBJECTS = frozenset("tensor as_tensor asarray new new_tensor __getitem__ __setitem__ narrow select".split())
_PLAIN_HOMES = ("builtins", "torch", "numpy")
