"""What the dispatcher's schemas say of a function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

BY_NAME = sys.maxsize
"""The place of an argument that is given by keyword only."""


def is_operator(func: Callable[..., Any]) -> bool:
    """Return whether a function is the dispatcher's own, whose schema tells all."""
    return isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)


def overloads_of(func: Callable[..., Any], name: str) -> list[torch._ops.OpOverload]:
    """Return the dispatcher's overloads behind a torch function, none if it goes by another name there."""
    if isinstance(func, torch._ops.OpOverload):
        return [func]
    own = getattr(func, "__name__", name)
    candidates = [func, getattr(torch.ops.aten, own, None), getattr(torch.ops.aten, name, None)]
    packets = (candidate for candidate in candidates if isinstance(candidate, torch._ops.OpOverloadPacket))
    packet = next(packets, None)
    names = packet.overloads() if packet is not None else []  # type: ignore[no-untyped-call]
    return [getattr(packet, overload) for overload in names]


def may_draw(func: Callable[..., Any], name: str) -> bool:
    """Return whether an overload is tagged as drawing random numbers."""
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads_of(func, name))


def written_arguments(func: Callable[..., Any], name: str) -> list[tuple[int, str]]:
    """Return place and name of the arguments that some overload writes to, but for ``out``; `BY_NAME` for keywords."""
    written = {
        (BY_NAME if argument.kwarg_only else place, argument.name)
        for overload in overloads_of(func, name)
        for place, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    # torch's own functions take what they write by keyword as `out`
    return sorted(entry for entry in written if entry[0] != BY_NAME or (is_operator(func) and entry[1] != "out"))
