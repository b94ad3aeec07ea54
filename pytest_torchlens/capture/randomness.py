"""Generators that a call may draw from, and their state before it."""

from __future__ import annotations

from typing import Any

import torch

from pytest_torchlens.capture.calls import RandomState


def state_before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> RandomState:
    """Return the state of the generator that a call with these arguments would draw from."""
    generator = kwargs.get("generator")
    if generator is None:
        generator = default_generator(_device(args, kwargs))
    return RandomState(generator, generator.get_state())


def drew(before: RandomState) -> bool:
    """Return whether the generator has moved since."""
    return not torch.equal(before.state, before.generator.get_state())


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that functions on `device` draw from unless told otherwise."""
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda._utils._get_device_index(device, optional=True)]
    return torch.default_generator


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, torch.Tensor):
            return arg.device
        if isinstance(arg, torch.device):
            return arg
    named = kwargs.get("device")
    return torch.device(named) if named is not None else torch.device("cpu")
