"""Snapshots of small models, and operations that are tampered with beneath the recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pytest_torchlens import log_forward_pass
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.run import find_environment
from pytest_torchlens.run import snapshot_of as taken
from pytest_torchlens.zoo.fill import fill_model
from pytest_torchlens.zoo.fill import fill_tensor

PASSES = 3
"""In which a call is met: the recorded one, its replay for the count of operations, and the one for the numbers."""


def an_input(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return fill_tensor(shape, dtype, -1.0, 1.0, seed=0, name="x")


def snapshot_of(model: nn.Module, *inputs: torch.Tensor, seed: int | None = 0) -> Snapshot:
    with torch.no_grad():
        history = log_forward_pass(model, list(inputs), layers_to_save=None, random_seed=seed)
        return taken(history, find_environment())


def filled(model: nn.Module) -> nn.Module:
    fill_model(model, 0)
    return model.eval()


class Small(nn.Module):
    """Convolution, batch norm, activation, residual, pooling, head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.GELU()
        self.mix = nn.Conv2d(8, 8, 1)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(self.conv(x)))
        x = x + self.mix(x) * 0.5
        return self.head(self.drop(x.mean((2, 3))))


class Made(Small):
    """`Small` whose pass is given."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.calls = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.calls(self, x)


class Tampered(TorchFunctionMode):
    """Lets one call of one function give something else, in the recorded pass and in its replay.

    Parameters
    ----------
    name
        The function.
    first, weight
        Fingerprints of its first argument and of its weight, if it has one, which tell the call.
    tamper
        Called with function, positional and keyword arguments; what it returns is the result.
    """

    def __init__(self, name: str, first: str, tamper: Callable[..., Any], weight: str = "") -> None:
        super().__init__()
        self.name, self.first, self.tamper, self.weight = name, first, tamper, weight
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == self.name and args and isinstance(args[0], torch.Tensor):
            with torch._C.DisableTorchFunction():
                is_it = self._is_it(args, kwargs)
            if is_it:
                self.count += 1
                return self.tamper(func, args, kwargs)
        return func(*args, **kwargs)

    def _is_it(self, args: Any, kwargs: Any) -> bool:
        weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
        if self.weight and not (isinstance(weight, torch.Tensor) and fingerprint(weight) == self.weight):
            return False
        return fingerprint(args[0]) == self.first


def tampered_snapshot(
    model: nn.Module, x: torch.Tensor, step_id: str, tamper: Callable[..., Any], clean: Snapshot | None = None
) -> Snapshot:
    """Return a snapshot in which the step of that id, and no other, computes something else."""
    clean = clean or snapshot_of(model, x)
    (numbers,) = (block.numbers for block in clean.measured.values())
    step = next(step for step in clean.steps if step.id == step_id)
    first = next(edge.parent for edge in step.parents if edge.argument in ("0", "input"))
    weights = [clean.state[edge.parent].digest for edge in step.reads if edge.argument in ("1", "weight")]
    with Tampered(step.applied, numbers[first].digest, tamper, weights[-1] if weights else "") as mode:
        found = snapshot_of(model, x)
    assert mode.count == PASSES, f"{step_id}: the call was met {mode.count} times, not in each of {PASSES} passes"
    return found
