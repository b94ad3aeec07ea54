"""Runs one call of a replay by itself, on other tensors than the replay has, or in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.memory import with_layout
from pytest_torchlens.capture.tensor_files import why_not_storable
from pytest_torchlens.replay import Player

ALIGNMENT = 64
"""Bytes: a kernel may compute differently on memory with another alignment."""
_EXACT = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
_EXACT |= dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64)


def run_on(
    player: Player,
    call: Call,
    tensor_of: Callable[[Value], torch.Tensor],
    change: Callable[[Any], Any] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run a call on the tensors of ``tensor_of(value)``; it overwrites copies, which have the originals' layout.

    `change` is applied to each argument, if given.
    """
    written: dict[int, torch.Tensor] = {}

    def writable(value: Value) -> torch.Tensor:
        if value.slot not in call.writes:
            return tensor_of(value)
        if value.slot not in written:
            written[value.slot] = copy_with_layout(tensor_of(value))
        return written[value.slot]

    args, kwargs = player.arguments(call, writable)
    if change is not None:
        args, kwargs = substitute(args, change), substitute(kwargs, change)
    returned = player.run(call, (args, kwargs))
    return returned if call.returned else tuple([written[value.slot] for value in call.outputs])


def results_in_float64(player: Player, call: Call) -> tuple[torch.Tensor, ...]:
    """Return a call's results in float64 on the replay's tensors; none if it is random, opaque or has no float64."""
    if call.random is not None or call.info.opaque or not any(value.dtype in _EXACT for value in call.outputs):
        return ()
    try:
        return run_on(player, call, lambda value: _in_float64(player.at(value.slot)), _in_float64)
    except Exception:  # noqa: BLE001 - functions without float64
        return ()


def copy_with_layout(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached copy with the memory layout of the tensor."""
    tensor = tensor.detach()
    if why_not_storable(tensor):
        return tensor.clone()
    return with_layout(tensor, tensor.stride(), tensor.data_ptr() % ALIGNMENT)


def _in_float64(leaf: Any) -> Any:
    """Return a tensor in float64, and float64 for a floating dtype; anything else unchanged."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to(_EXACT.get(leaf.dtype, leaf.dtype))
    return _EXACT.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf
