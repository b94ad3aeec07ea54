"""Finds the random generator that a call may draw from, and saves and restores the states of the global ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture.calls import RandomState
from pytest_torchlens.capture.fingerprint import digest_memory
from pytest_torchlens.capture.fingerprint import fingerprint


def state_before(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RandomState | None:
    """Return the state of the generator that a call may draw from; None if it cannot draw.

    `name` is that of PyTorch's function, whose arguments may tell; ``""`` for other code.
    """
    certain = _dropout_draws(args, kwargs) if "dropout" in name else None
    if certain is False:
        return None
    generator = kwargs.get("generator")
    if generator is None:
        generator = default_generator(_device(args, kwargs))
    return RandomState(generator, generator.get_state(), bool(certain))


def _dropout_draws(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Return whether dropout, the most frequent function that draws, draws with these arguments; None if unknown."""
    share = args[1] if len(args) > 1 else kwargs.get("p")
    training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train"))  # noqa: PLR2004 - the third
    if training is False or (type(share) in (int, float) and share == 0):
        return False
    known = training is True and type(share) is float and 0 < share < 1
    return True if known and args and type(args[0]) is torch.Tensor and args[0].numel() else None


def has_drawn(before: RandomState) -> bool:
    """Return whether the generator's state has changed."""
    return before.certain or _digest(before.state) != _digest(before.generator.get_state())


def _digest(state: torch.Tensor) -> int:
    """Return a digest of a state, which is a CPU tensor for generators on all devices."""
    return digest_memory(state.data_ptr(), state.nbytes)


def is_generator_state(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds the state of a generator: one accepts it, which others are not likely to pass."""
    own = torch.Generator().get_state()
    if tensor.dtype is not own.dtype or tensor.shape != own.shape or tensor.device != own.device:
        return False
    try:
        torch.Generator().set_state(tensor)
    except RuntimeError:
        return False
    return True


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that functions on `device` draw from by default."""
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda._utils._get_device_index(device, optional=True)]
    return torch.default_generator


def reseed(seed: int) -> None:
    """Seed the default generators; `torch.manual_seed` keeps stack traces for the devices that are not in use."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


_CPU = torch.device("cpu")


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    for arg in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(arg, torch.Tensor):
            return arg.device
        if isinstance(arg, torch.device):
            return arg
    named = kwargs.get("device") if kwargs else None
    return torch.device(named) if named is not None else _CPU


class Generators:
    """A snapshot of the global random generators: torch on all devices, NumPy, Python."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self._numpy = np.random.get_state()  # noqa: NPY002 - models draw from the global generator
        self._python = random.getstate()

    def restore(self) -> None:
        """Restore all of them."""
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        np.random.set_state(self._numpy)  # noqa: NPY002 - as above
        random.setstate(self._python)

    def digests(self) -> dict[str, str]:
        """Return a digest of each generator's state."""
        states = {"random state of torch": fingerprint(self._torch), "random state of Python": str(hash(self._python))}
        _, words, place, *rest = self._numpy
        states["random state of NumPy"] = str(hash((np.asarray(words).tobytes(), place, *rest)))
        return states | {f"random state of cuda:{i}": fingerprint(state) for i, state in enumerate(self._cuda)}
