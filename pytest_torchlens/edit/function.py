"""The function of an edited call: what the model calls, with other arguments, and with another result."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import strides_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.edit.changes import replacement
from pytest_torchlens.edit.places import Place

Changes = list[tuple[Place, Any]]


class CallEdits:
    """The edits of one call: of what it returns or writes, and of what it alone reads.

    Parameters
    ----------
    call
        The recorded call.
    """

    def __init__(self, call: Call) -> None:
        self._returned = call.returned
        self._written_slots = call.writes
        self._paths = [(path, value_of(read)) for path, read in edges_in(call)]
        self._outputs: dict[int, Changes] = {}
        self._arguments: dict[str, Changes] = {}

    def add(self, place: Place, change: Any) -> None:
        """Add an edit."""
        if place.consumer is None:
            self._outputs.setdefault(place.value.position, []).append((place, change))
            return
        paths = [path for path, value in self._paths if value is place.value]
        self._arguments.setdefault(paths[0], []).append((place, change))

    def has_the_changes_of(self, other: CallEdits) -> bool:
        """Return whether another call has the same edits, as it has where one key names both."""
        return self._changes() == other._changes()

    def _changes(self) -> list[list[int]]:
        by_place = [*self._outputs.values(), *self._arguments.values()]
        return [[id(change) for _, change in changes] for changes in by_place]

    def info(self, info: FunctionInfo) -> FunctionInfo:
        """Return the facts of a function whose calls are edited."""
        edited = copy.copy(info)
        edited.func = EditedFunction(info.func, self)
        return edited

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function with edited arguments, and return its edited result; so is what it writes in its place."""
        args, kwargs = self._arguments_for(args, kwargs)
        if not self._outputs:
            return func(*args, **kwargs)
        written = self._written(args, kwargs)
        copies = _copies_in_graph(written, args, kwargs)
        if copies:
            result = func(*with_tensors(copies, args), **with_tensors(copies, kwargs))
            found = [copies.get(id(tensor), tensor) for tensor in written]
            if all(map(_have_one_layout, written, found)):  # not so after ``t_()``, which can run again
                return self._edited(result, written, found)
        return self._edited(func(*args, **kwargs), written, written)

    def _arguments_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the function is called with."""
        if not self._arguments:
            return args, kwargs
        by_path = dict([*walk(args), *walk(kwargs)])
        new = {id(by_path[path]): _new(by_path[path], changes) for path, changes in self._arguments.items()}
        return with_tensors(new, args), with_tensors(new, kwargs)

    def _edited(self, result: Any, written: list[torch.Tensor], found: list[torch.Tensor]) -> Any:
        """Return the edited result; `written` gets what is edited of what the function wrote, which is in `found`."""
        outputs = tensors(result) if self._returned else tuple(found)
        contents = {id(tensor): tensor for tensor in found}
        new: dict[int, torch.Tensor] = {}
        for position, changes in self._outputs.items():
            tensor = outputs[position]
            into = contents if id(tensor) in contents else new
            into[id(tensor)] = _new(tensor, changes)
        for original, tensor in zip(written, found, strict=True):
            if contents[id(tensor)] is not original:
                original.copy_(contents[id(tensor)])
                new[id(tensor)] = original
        return with_tensors(new, result) if new else result

    def _written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Return the arguments that the call writes, in the order of its outputs if it returns none."""
        by_path = dict([*walk(args), *walk(kwargs)])
        by_slot = {value.slot: by_path[path] for path, value in self._paths if path in by_path}
        return [by_slot[slot] for slot in self._written_slots if slot in by_slot]


class EditedFunction:
    """Calls a function with edited arguments, and edits what it returns."""

    def __init__(self, func: Callable[..., Any], edits: CallEdits) -> None:
        self.func = self.__wrapped__ = func
        self._edits = edits
        self.__name__ = getattr(func, "__name__", "edited")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self._edits.call(self.func, args, kwargs)


def _copies_in_graph(written: list[torch.Tensor], args: Any, kwargs: Any) -> dict[int, torch.Tensor]:
    """Return copies of what a call writes, by id, if autograd follows it: it may need them as they are before an edit.

    There are none where memory has no plain layout.
    """
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for _, tensor in (*walk(args), *walk(kwargs))):
        return {}
    plain = [tensor for tensor in written if type(tensor) in PLAIN and strides_of(tensor) is not None]
    return {id(tensor): _copy_in_graph(tensor) for tensor in plain}


def _copy_in_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, for kernels may round otherwise with others."""
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return empty.copy_(tensor)


def _have_one_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and strides_of(one) == strides_of(other)


def _new(tensor: torch.Tensor, changes: Changes) -> torch.Tensor:
    """Return what takes the place of a tensor; its shape may be another one than in the recorded pass.

    A change that draws random numbers leaves the model those that it would have drawn.
    """
    value = Value(0, 0, 0, tensor)
    generators = Generators()
    try:
        change = replacement([(dataclasses.replace(place, value=value), change) for place, change in changes])
        return change.tensor(lambda: tensor)
    finally:
        generators.restore()


def with_tensors(new: dict[int, torch.Tensor], container: Any) -> Any:
    """Return a container with other tensors, which are given by the ids of those that they replace."""
    return substitute(container, lambda leaf: new.get(id(leaf), leaf) if is_a(leaf, torch.Tensor) else leaf)
