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

    def info(self, info: FunctionInfo) -> FunctionInfo:
        """Return the facts of a function whose calls are edited."""
        edited = copy.copy(info)
        edited.func = EditedFunction(info.func, self)
        return edited

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the function is called with."""
        if not self._arguments:
            return args, kwargs
        by_path = dict([*walk(args), *walk(kwargs)])
        new = {id(by_path[path]): _new(by_path[path], changes) for path, changes in self._arguments.items()}
        return with_tensors(new, args), with_tensors(new, kwargs)

    def result(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result; what the function writes is written over in its place."""
        if not self._outputs:
            return result
        by_path = dict([*walk(args), *walk(kwargs)])
        written = self._written(by_path)
        found = tensors(result) if self._returned else tuple(written)
        new = {}
        for position, changes in self._outputs.items():
            tensor = found[position]
            if any(tensor is one for one in written):
                tensor.copy_(_new(tensor, changes))
            else:
                new[id(tensor)] = _new(tensor, changes)
        return with_tensors(new, result) if new else result

    def _written(self, by_path: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the arguments that the call writes, in the order of its outputs if it returns none."""
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
        args, kwargs = self._edits.arguments(args, kwargs)
        return self._edits.result(self.func(*args, **kwargs), args, kwargs)


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
