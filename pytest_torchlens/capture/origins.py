"""Finds where tensors come from that no recorded call made.

`Makers` notes the dispatcher operation that made a tensor's memory.  `TensorsBefore` lists the tensors that existed
before the pass.  `name_constants` names the attribute, container or global that holds a constant.
"""

from __future__ import annotations

import gc
import inspect
import sys
import types
import weakref
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import looked_at
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.storage import storage_of
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import Source

_FROM_PYTHON = "aten::lift_fresh"  # passes on a tensor that a constructor made of Python numbers
_FEW = 1000


class Makers:
    """The operations that allocated memory during a pass."""

    def __init__(self) -> None:
        self._by_storage: dict[int, tuple[StorageWeakRef, str, int]] = {}
        self._next_look = _FEW

    def note(self, name: str, inside: int, given: tuple[Any, ...], result: Any) -> None:
        """Note the memory that an operation allocated, and the number of the call inside which it ran, or -1."""
        made = {storage._cdata: storage for storage in _storages(result)}
        if name != _FROM_PYTHON:
            for storage in _storages(given):
                made.pop(storage._cdata, None)
        for key, storage in made.items():
            entry = self._by_storage.get(key)
            if entry is None or _is_dead(entry[0]):
                self._by_storage[key] = StorageWeakRef(storage), name, inside  # type: ignore[no-untyped-call]
        if len(self._by_storage) > self._next_look:
            self._by_storage = {key: entry for key, entry in self._by_storage.items() if not _is_dead(entry[0])}
            self._next_look = 2 * len(self._by_storage) + _FEW

    def note_given(self, name: str, tensor: torch.Tensor) -> None:
        """Note the memory that a constructor gave to a new tensor, if no operation allocated it."""
        for storage in _storages(tensor):
            if (entry := self._by_storage.get(storage._cdata)) is None or _is_dead(entry[0]):
                self._by_storage[storage._cdata] = StorageWeakRef(storage), name, -1  # type: ignore[no-untyped-call]

    def of(self, tensor: torch.Tensor) -> tuple[str, int]:
        """Return the name of the operation (``""`` if unknown), and the number of the call around it, or -1."""
        entries = (self._by_storage.get(storage._cdata) for storage in _storages(tensor))
        entry = next((entry for entry in entries if entry is not None and not _is_dead(entry[0])), None)
        return ("", -1) if entry is None else entry[1:]


def _storages(value: Any) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in tensors(value) if _has_storage(tensor)]


def storages_of(value: Any) -> frozenset[int]:
    """Return what identifies the memory of each plain tensor in a value."""
    return frozenset(storage._cdata for storage in _storages(value))


def _has_storage(tensor: torch.Tensor) -> bool:
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_nested


def _is_dead(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]


Tensor = torch.Tensor


class TensorsBefore:
    """The tensors of this process at one moment, and their memory."""

    def __init__(self) -> None:
        tensors_alive = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
        self._frozen = gc.get_freeze_count()
        self._memory = {key: StorageWeakRef(storage) for key, storage in _memory_of(tensors_alive)}  # type: ignore[no-untyped-call]
        self._freed = {storage.cdata: storage for key, storage in self._memory.items() if key < 0}
        without = [tensor for tensor in tensors_alive if not _has_memory(tensor)]
        self._by_id = {id(tensor): weakref.ref(tensor) for tensor in without}

    def unknown_sources(self, sources: Iterable[Source]) -> list[Source]:
        """Return the constants among `sources` that did not exist then and whose origin is unknown."""
        constants = (
            source for source in sources if source.kind == "constant" and (source.made_inside >= 0 or not source.maker)
        )
        return [source for source in constants if not self._existed(source)]

    def _existed(self, source: Source) -> bool:
        former = self._by_id.get(id(source.live))
        # memory that was freed then may have got an address since
        memories = self._memory.get(source.memory), self._freed.get(_identity_of(source.live))
        # if it was freed, its id and memory may be reused
        if former is not None and former() is not None:
            return True
        if any(one is not None and not _is_dead(one) for one in memories):
            return True
        return source.foreign or self._was_frozen(source.live)

    def _was_frozen(self, tensor: Tensor) -> bool:
        """Return whether `gc.freeze` hides a tensor from the list of objects, and ran before that moment."""
        frozen_since = gc.get_freeze_count() > self._frozen
        return self._frozen > 0 and not frozen_since and all(thing is not tensor for thing in gc.get_objects())


def _memory_of(tensors: Iterable[Tensor]) -> Iterator[tuple[int, torch.UntypedStorage]]:
    """Yield the memory of plain tensors, and of their gradients, which may have no Python object yet.

    No weak reference to a tensor is needed for it: `torch.utils.swap_tensors` refuses those.
    """
    for tensor in filter(_has_memory, tensors):
        for one in (tensor, gradient_of(tensor)):
            storage = None if one is None else storage_of(one)
            if one is not None and storage is not None:
                yield storage_key(one), storage


def _identity_of(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        storage = storage_of(tensor)
    return 0 if storage is None else storage._cdata


def _has_memory(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and storage_key(tensor) != 0


def gradient_of(tensor: Tensor) -> Tensor | None:
    """Return the gradient of a leaf; None for any other tensor."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:  # autograd forbids reading some views, which other code may have made
        return None


_OF_TORCH = ("_parameters", "_buffers", "_modules")


def name_constants(recording: Recording, model: torch.nn.Module) -> None:
    """Name the constants that the model or a module of its code holds: ``"head._cache"``, ``"net.TABLE"``."""
    unnamed = [source for source in recording.sources if source.kind == "constant" and not source.name]
    if not unnamed:
        return
    names = {id(tensor): name for name, tensor in _named_tensors(model)}
    for source in unnamed:
        source.name = names.get(id(source.live), "")


def is_foreign(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is over memory of NumPy or another library, as after `torch.from_numpy`."""
    storage = storage_of(tensor) if tensor.device.type == "cpu" and storage_key(tensor) else None
    return storage is not None and not storage.resizable()


def tensors_used(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the tensors that a module holds, registered or not, and the global tensors that its forwards use."""
    used = [tensor for _, tensor in (*named_buffers(module), *named_parameters(module))]
    for _, part in named_modules(module):
        if is_a(part, torch.jit.ScriptModule):
            used += [value for _, value in script_attributes(part) if isinstance(value, torch.Tensor)]
        else:
            used += [
                tensor
                for _, tensor in _tensors_in({**_attributes(part), **looked_at(_named_by, part, otherwise={})}, "")
            ]
    return list({id(tensor): tensor for tensor in used}.values())


def tensors_used_by(code: Any) -> list[torch.Tensor]:
    """Return the tensors that a module or a function uses; of the modules that a function uses, all that they hold."""
    if is_a(code, torch.nn.Module):
        return tensors_used(code)
    names: dict[str, Any] = looked_at(_names_in, code, otherwise={})
    inner = [tensor for value in names.values() if is_a(value, torch.nn.Module) for tensor in tensors_used(value)]
    return [*(tensor for _, tensor in _tensors_in(names, "")), *inner]


def tensors_reached(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the tensors that the modules of a model hold, however deep in their attributes, and in such globals."""
    reached = [
        tensor
        for _, part in named_modules(module)
        for tensor in tensors({**_attributes(part), **looked_at(_named_by, part, otherwise={})})
    ]
    return list({id(tensor): tensor for tensor in (*tensors_used(module), *reached)}.values())


def script_attributes(module: Any) -> list[tuple[str, Any]]:
    """Return name and value of each attribute that a method of a scripted module assigns."""
    methods = [module._c._get_method(name) for name in module._c._method_names()]
    nodes = [node for method in methods for node in method.graph.findAllNodes("prim::SetAttr", recurse=True)]
    return [(name, module._c.getattr(name)) for name in {node.s("name") for node in nodes} if module._c.hasattr(name)]


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in (instance_dict(module) or {}).items() if name not in _OF_TORCH}


def _named_by(module: torch.nn.Module) -> dict[str, Any]:
    """Return the globals and enclosed variables that a module's forward uses."""
    return _names_in(getattr(module.forward, "__func__", module.forward))


def _names_in(code: Any) -> dict[str, Any]:
    function = inspect.unwrap(code)
    if not isinstance(function, types.FunctionType):
        return {}
    enclosed = inspect.getclosurevars(function)
    return {**enclosed.globals, **enclosed.nonlocals}


def _named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor.  The last of several names is used, so attributes of modules come after globals."""
    for module_name in sorted({home_of(type(module)) for _, module in named_modules(model)}):
        scope = instance_dict(sys.modules.get(module_name)) or {}
        yield from _tensors_in(dict(scope), module_name)
    for address, module in named_modules(model):
        yield from _tensors_in(_attributes(module), address)


def _tensors_in(scope: dict[str, Any], owner: str) -> Iterator[tuple[str, torch.Tensor]]:
    for attribute, value in scope.items():
        name = f"{owner}.{attribute}" if owner else attribute
        if is_a(value, torch.Tensor):
            yield name, value
        elif type(value) in (list, tuple):
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(value) if is_a(item, torch.Tensor))
        elif type(value) is dict:
            items = [(key, item) for key, item in value.items() if is_a(item, torch.Tensor)]
            yield from ((f"{name}[{looked_at(repr, key, otherwise='?')}]", item) for key, item in items)
