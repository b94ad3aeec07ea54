"""What the dispatcher's schemas say of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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
    """Return place and name of the positional arguments that some overload writes to."""
    written = {
        (place, argument.name)
        for overload in overloads_of(func, name)
        for place, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write and not argument.kwarg_only
    }
    return sorted(written)
