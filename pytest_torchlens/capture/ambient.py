"""Global settings that change what a torch function computes, kept once for each change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import torch

_C = torch._C
_deterministic = _C._get_deterministic_algorithms
_math, _flash, _efficient = _C._get_math_sdp_enabled, _C._get_flash_sdp_enabled, _C._get_mem_efficient_sdp_enabled
_precision = _C._get_float32_matmul_precision
_any_autocast = _C._is_any_autocast_enabled
_grad, _inference, _dtype = torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype

Key = tuple[Any, ...]


def current() -> Key:
    """Return the settings in force in this thread; cheap, for it is asked at every call."""
    return (
        _grad(),
        _inference(),
        _dtype(),
        _deterministic(),
        _math(),
        _flash(),
        _efficient(),
        _precision(),
        _autocast() if _any_autocast() else None,
    )


def _autocast() -> tuple[Any, ...]:
    return tuple(
        (device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled())
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )


@dataclass
class AmbientTable:
    """The settings met so far; a call keeps the number of its row."""

    rows: list[Key] = field(default_factory=list)
    _quick: tuple[Any, ...] = ()
    _number: int = -1

    def number(self, every: bool) -> int:
        """Return the row of the settings now in force, adding it if it is new.

        Unless `every` setting is asked for, those that few functions heed (attention backends, matmul precision)
        are looked at only when another has changed.
        """
        quick = _grad(), _inference(), _dtype(), _deterministic(), _any_autocast()
        if every or quick != self._quick or quick[4]:
            self._quick = quick
            key = current()
            if key not in self.rows:
                self.rows.append(key)
            self._number = self.rows.index(key)
        return self._number


@contextlib.contextmanager
def restored(key: Key) -> Iterator[None]:
    """Put recorded settings in force, and the present ones back at the end."""
    grad, inference, dtype, deterministic, math, flash, efficient, precision, autocast = key
    before = current()
    with contextlib.ExitStack() as stack:
        stack.callback(_set_globals, *before[2:8])
        if inference != before[1]:
            stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        for device, kind, cache in autocast or before[8] or ():
            on = bool(autocast)
            stack.enter_context(torch.autocast(device, dtype=kind, enabled=on, cache_enabled=cache))
        _set_globals(dtype, deterministic, math, flash, efficient, precision)
        yield


def _set_globals(
    dtype: torch.dtype, deterministic: bool, math: bool, flash: bool, efficient: bool, precision: str
) -> None:
    if dtype != torch.get_default_dtype():
        torch.set_default_dtype(dtype)
    if deterministic != _C._get_deterministic_algorithms():
        warn_only = _C._get_deterministic_algorithms_warn_only()
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    _C._set_sdp_use_math(math)
    _C._set_sdp_use_flash(flash)
    _C._set_sdp_use_mem_efficient(efficient)
    if precision != _C._get_float32_matmul_precision():
        torch.set_float32_matmul_precision(precision)
