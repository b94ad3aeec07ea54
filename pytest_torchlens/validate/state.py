"""Everything that a forward pass may change: a snapshot, its restoration, and its digest."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture import Source
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.memory import overwrite

_CONTAINERS = (dict, list, set, deque)
_GENERATORS: tuple[tuple[type, Any, Any], ...] = (
    (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
    (random.Random, random.Random.getstate, random.Random.setstate),
    (np.random.Generator, lambda g: g.bit_generator.state, lambda g, state: setattr(g.bit_generator, "state", state)),
    (np.random.RandomState, np.random.RandomState.get_state, np.random.RandomState.set_state),
)


class ModelState:
    """A model as it is now: attributes of every module, containers and generators in them, buffers, gradients."""

    def __init__(self, model: torch.nn.Module) -> None:
        python = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        self._attributes = [(module, type(module), dict(module.__dict__)) for module in python]
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._generators: list[tuple[Any, Any, Any]] = []
        for _, _, attributes in self._attributes:
            for value in attributes.values():
                self._note(value)
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers() if not is_lazy(buffer)]
        self._lazy = [(tensor, type(tensor)) for tensor in (*model.parameters(), *model.buffers()) if is_lazy(tensor)]
        self._gradients = [(parameter, parameter.grad, _copy(parameter.grad)) for parameter in model.parameters()]

    def _note(self, value: Any) -> None:
        """Note the contents of a container, and of those in it, or the state of a generator."""
        if isinstance(value, _CONTAINERS) and id(value) not in self._containers:
            self._containers[id(value)] = (value, value.copy())
            for item in value.values() if isinstance(value, dict) else value:
                self._note(item)
        for kind, get, put in _GENERATORS:
            if isinstance(value, kind):
                self._generators.append((value, get(value), put))

    def restore(self) -> None:
        """Put attributes and containers back by assignment, and the contents of tensors that changed by copying."""
        for module, kind, attributes in self._attributes:
            module.__class__ = kind
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for container, contents in self._containers.values():
            _refill(container, contents)
        for generator, state, put in self._generators:
            put(generator, state)
        self._restore_tensors()

    def _restore_tensors(self) -> None:
        for tensor, kind in self._lazy:
            tensor.data = torch.empty(0, device=tensor.device)
            tensor.__class__ = kind
        for buffer, former in self._buffers:
            if fingerprint(buffer) != fingerprint(former):
                overwrite(buffer, former)
        for parameter, gradient, contents in self._gradients:
            parameter.grad = gradient
            if gradient is not None and contents is not None:
                overwrite(gradient, contents)


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _refill(container: Any, contents: Any) -> None:
    container.clear()
    container.extend(contents) if isinstance(container, list | deque) else container.update(contents)


def restore_sources(sources: list[Source]) -> None:
    """Give parameters, buffers and inputs that recorded calls overwrote their former contents."""
    for source in sources:
        if source.written and source.kind != "constant" and source.value.tensor is not None:
            overwrite(source.live, source.value.tensor)


def state_digests(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return the fingerprint of every parameter, buffer and input, by a name for people."""
    tensors = {
        **{f"parameter {name}": parameter for name, parameter in model.named_parameters()},
        **{f"buffer {name}": buffer for name, buffer in model.named_buffers()},
        **{f"input {path}": tensor for path, tensor in inputs.items()},
    }
    digests = {name: fingerprint(tensor) for name, tensor in tensors.items() if not is_lazy(tensor)}
    return digests | {f"mode of {name or 'the model'}": str(m.training) for name, m in model.named_modules()}


class Generators:
    """The global random generators as they are now: torch on all devices, NumPy, Python."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self._numpy = np.random.get_state()  # noqa: NPY002 - models draw from the global generator
        self._python = random.getstate()

    def restore(self) -> None:
        """Put all of them back."""
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        np.random.set_state(self._numpy)  # noqa: NPY002 - as above
        random.setstate(self._python)

    def digests(self) -> dict[str, str]:
        """Return each generator's state in short."""
        states = {"random state of torch": fingerprint(self._torch), "random state of Python": str(hash(self._python))}
        _, words, place, *rest = self._numpy
        states["random state of NumPy"] = str(hash((np.asarray(words).tobytes(), place, *rest)))
        return states | {f"random state of cuda:{i}": fingerprint(state) for i, state in enumerate(self._cuda)}
