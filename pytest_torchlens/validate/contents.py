"""What containers, plain objects, arrays and generators hold: noted, and put back."""

from __future__ import annotations

import random
import types
from collections import UserDict
from collections import UserList
from collections import deque
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture.constants import script_attributes
from pytest_torchlens.capture.leaves import ATOMS

_CONTAINERS = (dict, list, set, deque)
_GENERATORS: tuple[tuple[type, Any, Any], ...] = (
    (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
    (random.Random, random.Random.getstate, random.Random.setstate),
    (np.random.Generator, lambda g: g.bit_generator.state, lambda g, state: setattr(g.bit_generator, "state", state)),
    (np.random.RandomState, np.random.RandomState.get_state, np.random.RandomState.set_state),
)


class Contents:
    """What can be reached from some values, as it is now.

    Parameters
    ----------
    values
        Where to begin.  Modules and their like are not entered.

    Attributes
    ----------
    tensors
        The tensors that were reached; what is in them is not noted.
    """

    def __init__(self, values: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        self._containers: list[tuple[Any, Any]] = []
        self._arrays: list[tuple[np.ndarray[Any, Any], Any]] = []
        self._generators: list[tuple[Any, Any, Any]] = []
        seen: dict[int, Any] = {}
        ahead = [values]
        while ahead:  # no recursion: what users hold may be linked for long
            value = ahead.pop()
            if id(value) not in seen and (type(value) not in ATOMS or isinstance(value, torch.Generator)):
                seen[id(value)] = value
                ahead += self._note(value)

    def _note(self, value: Any) -> list[Any]:
        """Note what a value holds, and return it."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
        elif isinstance(value, np.ndarray):
            if not isinstance(value, np.memmap) and value.flags.writeable:
                self._arrays.append((value, value.copy()))
        elif isinstance(value, tuple | frozenset):
            return list(value)
        elif isinstance(value, _CONTAINERS):
            self._containers.append((value, value.copy()))
            return list(value.values() if isinstance(value, dict) else value)
        elif not self._note_generator(value):
            attributes = getattr(value, "__dict__", None)
            return [attributes] if type(attributes) is dict and _is_data(value) else []
        return []

    def _note_generator(self, value: Any) -> bool:
        for kind, get, put in _GENERATORS:
            if isinstance(value, kind):
                self._generators.append((value, get(value), put))
                return True
        return False

    def restore(self) -> None:
        """Put back what has changed, in place."""
        for container, contents in self._containers:
            if not _same(container, contents):
                container.clear()
                container.extend(contents) if isinstance(container, list | deque) else container.update(contents)
        for array, former in self._arrays:
            if not np.array_equal(array, former):
                array[...] = former
        for generator, state, put in self._generators:
            put(generator, state)


def _same(container: Any, contents: Any) -> bool:
    """Return whether a container holds the very same things in the same order; equality may mean anything."""
    if len(container) != len(contents):
        return False
    if isinstance(container, dict) and any(one is not other for one, other in zip(container, contents, strict=True)):
        return False
    one, other = (part.values() if isinstance(part, dict) else part for part in (container, contents))
    return all(item is former for item, former in zip(one, other, strict=True))


# locks, threads, queues, loggers: what they hold is theirs
_MACHINERY = frozenset(["torch", "threading", "concurrent", "logging", "builtins", "_thread", "queue", "weakref", "io"])


def _is_data(value: Any) -> bool:
    """Return whether an object is the user's data, and no module, code or machinery."""
    if isinstance(value, torch.nn.Module | types.ModuleType | type) or callable(value):
        return False
    return isinstance(value, UserDict | UserList) or type(value).__module__.partition(".")[0] not in _MACHINERY


class Attributes:
    """The attributes of all modules of a model, and what can be reached from them and from its inputs.

    Attributes
    ----------
    contents
        What was reached.
    """

    def __init__(self, model: torch.nn.Module, inputs: Any = ()) -> None:
        modules = list(model.modules())
        self._scripted = [(m, script_attributes(m)) for m in modules if isinstance(m, torch.jit.ScriptModule)]
        self._modes = [(module, module.training) for module, _ in self._scripted if hasattr(module, "training")]
        python = (module for module in modules if not isinstance(module, torch.jit.ScriptModule))
        self._python = [(module, type(module), dict(vars(module))) for module in python]
        self.contents = Contents([inputs, *(attributes for _, _, attributes in self._python)])

    def restore(self) -> None:
        """Put them back by assignment."""
        for module, kind, attributes in self._python:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(attributes)
        for module, values in self._scripted:
            for name, value in values:
                module._c.setattr(name, value)
        for module, mode in self._modes:
            module.training = mode
        self.contents.restore()
