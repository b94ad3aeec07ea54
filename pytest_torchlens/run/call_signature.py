"""Decides whether two module calls are alike: an equal digest means that forward sees the same structure.

The digest covers everything that forward can see of the module tree and of its arguments, except the values of
tensors: classes and their code, plain attributes, functions by code and closure, hooks, modes, and shapes.  A call that
holds something whose contents cannot be read has no signature and matches no other.
"""

from __future__ import annotations

import collections
import contextlib
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
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack

from pytest_torchlens.capture.dispatch_watch import current_modes
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.storage import storage_key

_MOST_TOKENS = 200_000
"""Largest number of tokens of one call; a call with more has no signature."""
_MOST_BYTES = 1 << 24
"""Largest array that is read."""
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
_BUILTINS = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType),
    *(np.ufunc, torch._ops.OpOverload, torch._ops.OpOverloadPacket),
)
_BRIEF_DEPTH, _FEW = 3, 100
"""How deep, and into containers of how many items, classes and globals are described."""
_LIBRARIES = frozenset([*sys.stdlib_module_names, "torch", "numpy"])
"""Packages whose code no test replaces."""
_serials: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
_next_serial = itertools.count()


def call_signature(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return a digest that alike calls of a module share; None if a part of the call cannot be read.

    Parameters
    ----------
    module, args, kwargs
        The call ``module(*args, **kwargs)``.
    """
    description = _Description()
    try:
        description.add((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
        description.add((torch._C._is_any_autocast_enabled(), torch.get_default_dtype()))
        description.add((torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")))
        for name in _GLOBAL_HOOKS:
            description.add(list(getattr(torch_module, name).values()))
        description.add(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]
        description.add(current_modes())
        description.add((module, args, kwargs))
    except Exception:  # noqa: BLE001 - a user's object may raise anything
        return None
    return description.digest()


class UntellableError(Exception):
    """Something whose contents cannot be read."""


class _Description:
    """Tokens that describe objects; an object that comes again is described by the number of its first mention."""

    def __init__(self) -> None:
        self._tokens: list[str] = []
        self._numbers: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._classes: set[type] = set()
        self._alive: list[Any] = []  # an id must not be used again meanwhile
        self._depth = 0

    def digest(self) -> str:
        return hashlib.blake2b("\n".join(self._tokens).encode(errors="replace"), digest_size=16).hexdigest()

    def add(self, thing: Any) -> None:
        """Describe an object and what it holds."""
        kind = type(thing)
        if len(self._tokens) > _MOST_TOKENS:
            raise UntellableError
        if kind in _PLAIN:
            self._tokens.append(f"{kind.__name__} {thing!r}")
        elif isinstance(thing, _BY_REPR):
            self._tokens.append(f"{kind.__qualname__} {thing!r}")
        elif id(thing) in self._numbers:
            self._tokens.append(f"again {self._numbers[id(thing)]}")
        else:
            self._numbers[id(thing)] = len(self._numbers)
            self._alive.append(thing)
            self._add_new(thing, kind)

    def _add_new(self, thing: Any, kind: type) -> None:
        if self._depth > _DEEPEST:
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
        if kind in self._classes:
            return
        self._classes.add(kind)
        self.add(getattr(kind, "forward", None))
        for base in kind.__mro__:
            if base.__module__.partition(".")[0] not in _LIBRARIES:
                self._members(base)

    def _members(self, kind: type) -> None:
        for name, value in vars(kind).items():
            if isinstance(value, types.FunctionType):
                self._tokens.append(f"{name} {hash(value.__code__)}")
                for cell in value.__closure__ or ():
                    with contextlib.suppress(ValueError):  # not assigned yet
                        self._briefly("cell", cell.cell_contents)
                self._globals(value)
            elif not name.startswith(("__", "_abc_")):
                self._briefly(name, value)

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
        """Describe the globals that a function names, and what it names in modules among them."""
        names = list(dict.fromkeys(_names_in(function.__code__)))
        for name in names:
            value = function.__globals__.get(name)
            self._named_in(name, value, names)

    def _named_in(self, name: str, value: Any, names: list[str], depth: int = 0) -> None:
        """Describe a global; of a module what the function names in it: ``nn.functional.relu``."""
        if not isinstance(value, types.ModuleType):
            self._briefly(name, value)
        elif depth < _BRIEF_DEPTH:
            for part in names:
                if part in vars(value):
                    self._named_in(f"{name}.{part}", vars(value)[part], names, depth + 1)

    def _briefly(self, name: str, value: Any, depth: int = 0) -> None:
        """Describe code by itself alone: what a class or a module holds may lead to everything that is loaded."""
        if isinstance(value, types.FunctionType):
            self._tokens.append(f"{name} {value.__module__} {hash(value.__code__)}")
        elif type(value) in _PLAIN:
            self._tokens.append(f"{name} {value!r}")
        elif isinstance(value, _BUILTINS):
            self._tokens.append(name)
            self._builtin(value)
        elif isinstance(value, type):
            self._tokens.append(f"{name} {value.__qualname__} {_serial(value)}")
        else:
            for number, part in enumerate(_parts_of(value) if depth < _BRIEF_DEPTH else ()):
                self._briefly(f"{name}.{number}", part, depth + 1)

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
        kind = next(kind for kind in _SEQUENCES if isinstance(items, kind))  # a subclass may override methods
        self._tokens.append(f"{type(items).__qualname__} {kind.__len__(items)}")
        for item in kind.__iter__(items):
            self.add(item)
        self._rest_of(items)

    def _mapping(self, items: Any) -> None:
        entries = list(dict.items(items) if isinstance(items, dict) else items.items())
        self._tokens.append(f"{type(items).__qualname__} {len(entries)}")
        for key, value in entries:
            self.add(key)
            self.add(value)
        self._rest_of(items)

    def _rest_of(self, container: Any) -> None:
        """Describe what a subclass of a container holds besides its items."""
        if isinstance(container, collections.defaultdict):
            self.add(container.default_factory)
        for name, value in getattr(container, "__dict__", {}).items():
            self._tokens.append(name)
            self.add(value)

    def _tensor(self, tensor: torch.Tensor) -> None:
        """Describe a tensor, and by a number the memory that it shares with others."""
        self._tokens.append(_tensor_signature(tensor))
        key = 0 if is_lazy(tensor) else storage_key(tensor)
        self._tokens.append(f"memory {self._memory.setdefault(key, len(self._memory))}")

    def _generator(self, generator: Any) -> None:
        """Describe a generator by its code, its current position and its variables."""
        frame = generator.gi_frame
        self._tokens.append(f"generator {hash(generator.gi_code)} {frame and frame.f_lasti}")
        self._mapping(dict(frame.f_locals) if frame else {})

    def _set(self, items: Any) -> None:
        if not all(type(item) in _PLAIN or isinstance(item, _BY_REPR) for item in items):
            raise UntellableError
        self._tokens.append(f"{type(items).__qualname__} {sorted(map(repr, items))}")

    def _array(self, array: np.ndarray) -> None:
        if array.dtype.hasobject or array.nbytes > _MOST_BYTES:
            raise UntellableError
        digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
        self._tokens.append(f"array {array.dtype} {array.shape} {digest}")

    def _reference(self, reference: weakref.ref[Any]) -> None:
        self._tokens.append("reference")
        self.add(reference())

    def _named(self, thing: Any) -> None:
        self._tokens.append(f"{type(thing).__qualname__} {vars(thing).get('name') or vars(thing).get('__name__')}")

    def _type_only(self, thing: Any) -> None:
        self._tokens.append(type(thing).__qualname__)

    def _object(self, thing: Any) -> None:
        """Describe any other object by its class and its attributes."""
        kind = type(thing)
        if _has_state_in_c(thing):
            raise UntellableError(kind)
        self._class(kind)
        self._mapping({**getattr(thing, "__dict__", {}), **_in_slots(thing)})


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


def _parts_of(value: Any) -> tuple[Any, ...]:
    """Return what a wrapper of functions, or a small container, is made of; of other objects nothing."""
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if type(value) is dict:
        return tuple(itertools.chain(*value.items())) if len(value) <= _FEW else ()
    return tuple(value) if type(value) in (list, tuple) and len(value) <= _FEW else ()


def _in_slots(thing: Any) -> dict[str, Any]:
    """Return what an object holds in slots, read past the properties of its class."""
    found: dict[str, Any] = {}
    for base in type(thing).__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # it is empty
                    found[f"{base.__qualname__}.{name}"] = slot.__get__(thing)
    return found


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function's code, and the functions inside it, read from globals and modules."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _serial(kind: type) -> int:
    """Return a number that no other class has, also after this one is gone."""
    number = _serials.get(kind)
    if number is None:
        number = _serials[kind] = next(_next_serial)
    return number


def _tensor_signature(tensor: torch.Tensor) -> str:
    """Return class, shape, dtype, device, layout and gradient flag of a tensor."""
    if is_lazy(tensor):
        return str(type(tensor))
    shape = "nested" if tensor.is_nested else tuple(tensor.shape)
    shape = f"{shape} {tensor.stride()}" if tensor.layout is torch.strided and not tensor.is_nested else shape
    return f"{type(tensor).__qualname__} {shape} {tensor.dtype} {tensor.device} {tensor.layout} {tensor.requires_grad}"


_DESCRIBERS: tuple[tuple[Any, Callable[[_Description, Any], None]], ...] = (
    (torch.nn.Module, _Description._module),
    (torch.Tensor, _Description._tensor),
    (types.FunctionType, _Description._function),
    (types.MethodType, _Description._method),
    (_BUILTINS, _Description._builtin),
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
