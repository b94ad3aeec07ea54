"""Computes the gradients of a model's outputs, weighted with seeded numbers, without touching ``.grad``."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import torch

from pytest_torchlens.capture.leaves import walk


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
        weights = [_weights(tensor, seed) for seed, tensor in enumerate(outputs)]
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            outputs, [*targets.values()], weights, allow_unused=True
        )
        return {name: gradient for name, gradient in zip(targets, found, strict=True) if gradient is not None}

    return run


def _weights(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Return eighths from -1 to 1 in the shape of an output: the same numbers in each dtype."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, tensor.shape, generator=generator) / 8).to(tensor)
