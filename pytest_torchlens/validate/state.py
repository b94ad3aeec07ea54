"""Everything that a forward pass may change: a snapshot, its restoration, and its digest."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.constants import tensors_used
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.capture.opaque import is_opaque
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.validate.contents import Attributes


class ModelState:
    """A model and its inputs as they are now, with all that a forward pass may change.

    Parameters are not copied for the sake of modules whose inside is seen, for they are large: what is written to
    them is recorded with what it was before.

    Parameters
    ----------
    model
        The model.
    inputs
        Whatever it is called with.
    """

    def __init__(self, model: torch.nn.Module, inputs: Any = ()) -> None:
        self._attributes = Attributes(model, inputs)
        parameters = {id(parameter): parameter for parameter in model.parameters() if not is_lazy(parameter)}
        held = [*model.buffers(), *(t for t in self._attributes.contents.tensors if id(t) not in parameters)]
        held += [tensor for module in model.modules() if is_opaque(module) for tensor in tensors_used(module)]
        copied = {id(tensor): tensor for tensor in held if not is_lazy(tensor)}
        self._memory = [(tensor, tensor.detach()) for tensor in (parameters | copied).values()]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in copied.values()]
        self._lazy = [(tensor, type(tensor)) for tensor in (*model.parameters(), *model.buffers()) if is_lazy(tensor)]
        self._gradients = [(parameter, parameter.grad, _copy(parameter.grad)) for parameter in model.parameters()]

    def restore(self, recording: Recording | None = None) -> None:
        """Put all back: by assignment where that is enough, tensors that changed by copying.

        What recorded calls overwrote or drew from is put back with it, if a recording is given.
        """
        self._attributes.restore()
        for tensor, kind in self._lazy:
            tensor.data = torch.empty(0, device=tensor.device)
            tensor.__class__ = kind
        for tensor, former in self._memory:
            if not _same_memory(tensor, former):
                tensor.data = former
        if recording is not None:
            _restore_sources(recording)
        for tensor, contents in self._tensors:
            if fingerprint(tensor) != fingerprint(contents):
                overwrite(tensor, contents)
        for parameter, gradient, values in self._gradients:
            parameter.grad = gradient
            if gradient is not None and values is not None:
                overwrite(gradient, values)


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _same_memory(tensor: torch.Tensor, former: torch.Tensor) -> bool:
    return tensor.shape == former.shape and storage_key(tensor) == storage_key(former)


def _restore_sources(recording: Recording) -> None:
    """Give sources that recorded calls overwrote their former contents, and generators their former states."""
    for source in recording.sources:
        live, former = source.live, source.value.tensor
        if source.written and former is not None and not is_lazy(live) and former.shape == live.shape:
            overwrite(live, former)
    states = {id(call.random.generator): call.random for call in reversed(recording.calls) if call.random is not None}
    for first in states.values():
        first.generator.set_state(first.state)


def state_digests(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return the fingerprint of every parameter, buffer and input, by a name for people."""
    tensors = {
        **{f"parameter {name}": parameter for name, parameter in model.named_parameters()},
        **{f"buffer {name}": buffer for name, buffer in model.named_buffers()},
        **{f"input {path}": tensor for path, tensor in inputs.items()},
    }
    digests = {name: fingerprint(tensor) for name, tensor in tensors.items() if not is_lazy(tensor)}
    modes = {name or "the model": getattr(module, "training", "none") for name, module in model.named_modules()}
    return digests | {f"mode of {name}": str(mode) for name, mode in modes.items()}


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
