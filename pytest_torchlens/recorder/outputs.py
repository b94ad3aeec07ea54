"""The tensor in what a module returns."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import fields
from dataclasses import is_dataclass
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor


def first_tensor(output: Any) -> torch.Tensor | None:
    """Return the first tensor of real or complex numbers in an output, in containers too; None where there is none."""
    if isinstance(output, torch.Tensor):
        return output if is_measurable(output) else None
    for part in _parts(output):
        if (found := first_tensor(part)) is not None:
            return found
    return None


def is_measurable(tensor: torch.Tensor) -> bool:
    """Whether it holds floating or complex numbers, at least one of them, and they are in memory as one tensor."""
    if tensor.is_meta or tensor.is_nested or is_functorch_wrapped_tensor(tensor):
        return False
    return bool((tensor.is_floating_point() or tensor.is_complex()) and tensor.numel())


def _parts(output: Any) -> Iterable[Any]:
    if isinstance(output, Mapping):
        return output.values()
    if isinstance(output, tuple | list):
        return output
    if is_dataclass(output) and not isinstance(output, type):
        return [getattr(output, field.name) for field in fields(output)]
    return ()
