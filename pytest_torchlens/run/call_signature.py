"""Tells whether two module calls are alike: the same digest means that forward sees the same structure.

The digest covers everything that forward can see of the module tree and of its arguments, but for the values of
tensors: classes and their code, plain attributes, functions by code and closure, hooks, modes, and shapes.  A call that
holds something whose contents cannot be read has no signature; it is like no other.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import functools
import hashlib
import itertools
import logging
import pathlib
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_module

from pytest_torchlens.capture.leaves import is_lazy

MOST_THINGS = 200_000
"""Objects that are looked at in one call; a call with more has no signature."""
_DEEPEST = 100
_PLAIN = frozenset([bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented)])
_BY_REPR: tuple[type, ...] = (
    *(enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, range, slice),
    *(pathlib.PurePath, re.Pattern, np.dtype, np.generic, decimal.Decimal),
    *(datetime.date, datetime.time, datetime.timedelta),
)
_BY_TYPE = (type(threading.Lock()), type(threading.RLock()), torch.Generator, threading.local)
_SEQUENCES = (list, tuple, collections.deque)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_hooks")
_NOT_SEEN = frozenset(
    """_parameters _buffers _modules _non_persistent_buffers_set _state_dict_hooks _state_dict_pre_hooks
    _load_state_dict_pre_hooks _load_state_dict_post_hooks _forward_hooks_with_kwargs _forward_hooks_always_called
    _forward_pre_hooks_with_kwargs _compiled_call_impl""".split()
)
"""Attributes of a module that forward does not see, or that are described in another way."""
_LIBRARIES = frozenset([*sys.stdlib_module_names, "torch", "numpy"])
"""Packages whose code no test replaces."""
_serials: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
_next_serial = itertools.count()


def call_signature(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return a digest that alike calls of a module have in common; None if something of it cannot be told.

    Parameters
    ----------
    module, args, kwargs
        The call ``module(*args, **kwargs)``.
    """
    description = _Description()
    try:
        description.add((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
        description.add(torch._C._is_any_autocast_enabled())
        for name in _GLOBAL_HOOKS:
            description.add(list(getattr(torch_module, name).values()))
        description.add((module, args, kwargs))
    except UntellableError:
        return None
    return description.digest()


class UntellableError(Exception):
    """Something whose contents cannot be read."""


class _Description:
    """Tokens that describe objects; an object that comes again is described by the number of its first mention."""

    def __init__(self) -> None:
        self._tokens: list[str] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # an id must not be used again meanwhile
        self._depth = 0

    def digest(self) -> str:
        return hashlib.blake2b("\n".join(self._tokens).encode(errors="replace"), digest_size=16).hexdigest()

    def add(self, thing: Any) -> None:
        """Describe an object and what it holds."""
        kind = type(thing)
        if kind in _PLAIN:
            self._tokens.append(f"{kind.__name__} {thing!r}")
        elif isinstance(thing, torch.Tensor):
            self._tokens.append(tensor_signature(thing))
        elif isinstance(thing, _BY_REPR):
            self._tokens.append(f"{kind.__qualname__} {thing!r}")
        elif id(thing) in self._numbers:
            self._tokens.append(f"again {self._numbers[id(thing)]}")
        else:
            self._numbers[id(thing)] = len(self._numbers)
            self._alive.append(thing)
            self._add_new(thing, kind)

    def _add_new(self, thing: Any, kind: type) -> None:
        if len(self._numbers) > MOST_THINGS or self._depth > _DEEPEST:
            raise UntellableError
        self._depth += 1
        for handled, describe in _DESCRIBERS:
            if issubclass(kind, handled):
                describe(self, thing)
                break
        else:
            self._object(thing)
        self._depth -= 1

    def _module(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            name, mode = module._c._type().qualified_name(), getattr(module, "training", None)
            self._tokens.append(f"script {name} {mode}")  # one name, one code
            return
        self._class(type(module))
        for members in (module._parameters, module._buffers, module._modules):
            self._mapping(members)
        for name in _HOOKS:
            self._hooks(module, name)
        for name, value in vars(module).items():
            if name not in _NOT_SEEN and name not in _HOOKS:
                self._tokens.append(name)
                self.add(value)

    def _hooks(self, module: torch.nn.Module, name: str) -> None:
        for key, hook in (vars(module).get(name) or {}).items():
            with_kwargs = key in vars(module).get(f"{name}_with_kwargs", ())
            self._tokens.append(f"{name} {with_kwargs}")
            self.add(hook)

    def _class(self, kind: type) -> None:
        """Describe a class by its number and, if it is not PyTorch's, by the code of its methods: tests replace it."""
        self._tokens.append(f"class {kind.__module__}.{kind.__qualname__} {_serial(kind)}")
        if ("class", kind) in self._numbers:  # type: ignore[comparison-overlap]
            return
        self._numbers["class", kind] = len(self._numbers)  # type: ignore[index]
        self.add(getattr(kind, "forward", None))
        for base in kind.__mro__:
            if base.__module__.partition(".")[0] in _LIBRARIES:
                break
            for name, value in vars(base).items():
                if isinstance(value, types.FunctionType):
                    self._tokens.append(f"{name} {hash(value.__code__)}")
                    self._globals(value)
                elif type(value) in _PLAIN and not name.startswith("__"):
                    self._tokens.append(f"{name} {value!r}")

    def _function(self, function: types.FunctionType) -> None:
        self._tokens.append(f"function {function.__module__} {hash(function.__code__)}")
        self._sequence(function.__defaults__ or ())
        self._mapping(function.__kwdefaults__ or {})
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # not assigned yet
                self._tokens.append("empty")
        if str(function.__module__).partition(".")[0] not in _LIBRARIES:
            self._globals(function)

    def _globals(self, function: types.FunctionType) -> None:
        """Describe the plain values and the code of the functions among the globals that a function names."""
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, types.FunctionType):
                self._tokens.append(f"{name} {value.__module__} {hash(value.__code__)}")
            elif value is not None and type(value) in _PLAIN:
                self._tokens.append(f"{name} {value!r}")

    def _method(self, method: types.MethodType) -> None:
        self.add(method.__func__)
        self.add(method.__self__)

    def _builtin(self, function: Any) -> None:
        self._tokens.append(f"builtin {getattr(function, '__module__', '')} {function!r}".partition(" at 0x")[0])

    def _cached(self, function: Any) -> None:
        self._tokens.append("cached")
        self.add(function.__wrapped__)

    def _namespace(self, namespace: types.SimpleNamespace) -> None:
        self._class(type(namespace))
        self._mapping(vars(namespace))

    def _partial(self, one: functools.partial[Any]) -> None:
        self._sequence((one.func, one.args, one.keywords))

    def _sequence(self, items: Any) -> None:
        self._tokens.append(f"{type(items).__qualname__} {len(items)}")
        for item in items:
            self.add(item)

    def _mapping(self, items: Any) -> None:
        self._tokens.append(f"{type(items).__qualname__} {len(items)}")
        for key, value in items.items():
            self.add(key)
            self.add(value)

    def _generator(self, generator: Any) -> None:
        """Describe a generator by its code, the place that it has come to, and its variables."""
        frame = generator.gi_frame
        self._tokens.append(f"generator {hash(generator.gi_code)} {frame and frame.f_lasti}")
        self._mapping(dict(frame.f_locals) if frame else {})

    def _set(self, items: Any) -> None:
        if not all(type(item) in _PLAIN or isinstance(item, _BY_REPR) for item in items):
            raise UntellableError
        self._tokens.append(f"{type(items).__qualname__} {sorted(map(repr, items))}")

    def _array(self, array: np.ndarray) -> None:
        if array.dtype.hasobject:
            raise UntellableError
        digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
        self._tokens.append(f"array {array.dtype} {array.shape} {digest}")

    def _reference(self, reference: weakref.ref[Any]) -> None:
        self._tokens.append("reference")
        self.add(reference())

    def _named(self, thing: Any) -> None:
        self._tokens.append(f"{type(thing).__qualname__} {getattr(thing, 'name', '') or thing.__name__}")

    def _type_only(self, thing: Any) -> None:
        self._tokens.append(type(thing).__qualname__)

    def _object(self, thing: Any) -> None:
        """Describe any other object by its class and its attributes."""
        kind = type(thing)
        slots = {name for base in kind.__mro__ for name in _slots(base)}
        if _has_state_in_c(thing):
            raise UntellableError(kind)
        self._class(kind)
        attributes = {**getattr(thing, "__dict__", {}), **{name: getattr(thing, name, None) for name in slots}}
        self._mapping(attributes)


_HEAP_TYPE = 1 << 9


def _has_state_in_c(thing: Any) -> bool:
    """Return whether an object may hold something that is in no attribute: a file, an iterator of a list."""
    solid = next(base for base in type(thing).__mro__ if not base.__flags__ & _HEAP_TYPE)
    if solid is not object:
        return True
    try:
        getattr(object, "__getstate__", lambda _: None)(thing)  # Python's own, which looks at the size in memory
    except TypeError:
        return True
    return False


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _serial(kind: type) -> int:
    """Return a number that no other class has, also after this one is gone."""
    number = _serials.get(kind)
    if number is None:
        number = _serials[kind] = next(_next_serial)
    return number


def tensor_signature(tensor: torch.Tensor) -> str:
    """Return class, shape, dtype, device, layout and gradient flag of a tensor."""
    if is_lazy(tensor):
        return str(type(tensor))
    shape = "nested" if tensor.is_nested else tuple(tensor.shape)
    return f"{type(tensor).__qualname__} {shape} {tensor.dtype} {tensor.device} {tensor.layout} {tensor.requires_grad}"


_DESCRIBERS: tuple[tuple[Any, Callable[[_Description, Any], None]], ...] = (
    (torch.nn.Module, _Description._module),
    (types.FunctionType, _Description._function),
    (types.MethodType, _Description._method),
    ((types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType), _Description._builtin),
    ((types.MethodWrapperType, np.ufunc, torch._ops.OpOverload, torch._ops.OpOverloadPacket), _Description._builtin),
    (functools.partial, _Description._partial),
    (functools._lru_cache_wrapper, _Description._cached),
    (types.SimpleNamespace, _Description._namespace),
    (type, _Description._class),
    ((types.ModuleType, logging.Logger), _Description._named),
    (_BY_TYPE, _Description._type_only),
    (_SEQUENCES, _Description._sequence),
    ((dict, types.MappingProxyType), _Description._mapping),
    ((set, frozenset), _Description._set),
    (np.ndarray, _Description._array),
    (weakref.ref, _Description._reference),
    (types.GeneratorType, _Description._generator),
)
