"""Computes the gradients of a model's outputs, weighted with seeded numbers, without touching ``.grad``."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import named_parameters


class NoGradientError(Exception):
    """No output has a gradient."""


def gradients_by(
    function: Callable[..., Any], targets: Mapping[str, torch.Tensor]
) -> Callable[..., dict[str, torch.Tensor]]:
    """Return a function of the arguments of `function` that gives the gradient by each target, without those of none.

    The function raises `NoGradientError` if no output has a gradient.
    """

    def run(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        with torch.enable_grad():
            outputs = [tensor for _, tensor in walk(function(*args, **kwargs)) if tensor.requires_grad]
        if not outputs:
            raise NoGradientError("no output has a gradient")
        weights = [weights_of(tensor, seed) for seed, tensor in enumerate(outputs)]
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            outputs, [*targets.values()], weights, allow_unused=True
        )
        return {name: gradient for name, gradient in zip(targets, found, strict=True) if gradient is not None}

    return run


def weighted_sum(output: object) -> float:
    """Return the sum of all numbers of outputs with gradients, each with its weight."""
    outputs = [tensor for _, tensor in walk(output) if tensor.requires_grad]
    return sum(float((tensor.detach() * weights_of(tensor, seed)).sum()) for seed, tensor in enumerate(outputs))


def moved(parameters: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return copies of tensors, each number moved by one unit in its last place, up or down.

    Where a rectifier or a maximum is close to its edge, a gradient jumps: what such a move changes, rounding explains.
    """
    generator = torch.Generator().manual_seed(seed)
    return {
        name: _moved(tensor.detach(), generator).requires_grad_(tensor.requires_grad)
        for name, tensor in parameters.items()
    }


def moved_tensor(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a copy of a tensor, each real number moved by one unit in its last place."""
    return _moved(tensor.detach(), torch.Generator().manual_seed(seed))


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    up = (torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1).to(tensor)
    return tensor * (1 + up * torch.finfo(tensor.dtype).eps)


def moved_gradients(model: nn.Module, seed: int) -> Callable[..., dict[str, torch.Tensor]]:
    """Return a function that gives the gradients of a model by its parameters, all moved by one unit."""
    parameters = moved(dict(named_parameters(model)), seed)
    targets = {name: tensor for name, tensor in parameters.items() if tensor.requires_grad}
    return gradients_by(lambda *args, **kwargs: functional_call(model, parameters, args, kwargs), targets)


def weights_of(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Return eighths from -1 to 1 in the shape of an output: the same numbers in each dtype."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, tensor.shape, generator=generator) / 8).to(tensor)
