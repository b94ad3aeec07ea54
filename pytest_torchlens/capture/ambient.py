"""Records global settings that change what a torch function computes: one row for each change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import NamedTuple

import torch
from torch.utils import _device

_C = torch._C
_any_autocast = _C._is_any_autocast_enabled
_grad, _inference, _dtype = torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype
_deterministic, _threads, _onednn = _C._get_deterministic_algorithms, _C.get_num_threads, _C._get_mkldnn_enabled

Key = tuple[Any, ...]


class Setting(NamedTuple):
    """A setting of the whole process."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], object]

    def value(self) -> Any:
        """Return the current value; None where PyTorch raises."""
        try:
            return self.get()
        except RuntimeError:  # set by PyTorch's new API; then the old getter raises
            return None


def _set_deterministic(on: bool) -> None:
    torch.use_deterministic_algorithms(on, warn_only=_C._get_deterministic_algorithms_warn_only())


def _set_warn_only(warn: bool) -> None:
    torch.use_deterministic_algorithms(_deterministic(), warn_only=warn)


SETTINGS = (
    Setting("default dtype", _dtype, torch.set_default_dtype),
    Setting("threads", _threads, torch.set_num_threads),
    Setting("deterministic algorithms", _deterministic, _set_deterministic),
    Setting("deterministic algorithms only warn", _C._get_deterministic_algorithms_warn_only, _set_warn_only),
    Setting("float32 matmul precision", _C._get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Setting("attention by math", _C._get_math_sdp_enabled, _C._set_sdp_use_math),
    Setting("attention by flash", _C._get_flash_sdp_enabled, _C._set_sdp_use_flash),
    Setting("attention by memory efficient kernel", _C._get_mem_efficient_sdp_enabled, _C._set_sdp_use_mem_efficient),
    Setting("oneDNN", _onednn, _C._set_mkldnn_enabled),
    Setting("cuDNN", _C._get_cudnn_enabled, _C._set_cudnn_enabled),
    Setting("cuDNN benchmark", _C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    Setting("cuDNN deterministic", _C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    Setting("cuDNN TF32", _C._get_cudnn_allow_tf32, _C._set_cudnn_allow_tf32),
)
_GETTERS = tuple(setting.get for setting in SETTINGS)


def current() -> Key:
    """Return the current settings: gradients, inference mode, autocast, default device, then those of the process."""
    autocast = _autocast() if _any_autocast() else None
    try:
        process = [get() for get in _GETTERS]
    except RuntimeError:
        process = [setting.value() for setting in SETTINGS]
    return (_grad(), _inference(), autocast, _device.CURRENT_DEVICE, *process)


def _autocast() -> tuple[Any, ...]:
    return tuple(
        (device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled())
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )


def in_words(key: Key) -> dict[str, str]:
    """Return settings by name, as text: ``{"default dtype": "float32", "threads": "4", ...}``."""
    grad, inference, autocast, device, *rest = key
    casts = ", ".join(f"{kind} {word(dtype)}" for kind, dtype, _ in autocast or ())
    words = {"gradients": word(grad), "inference mode": word(inference), "autocast": casts or "off"}
    words |= {"default device": str(device or "cpu")}
    return words | {setting.name: word(value) for setting, value in zip(SETTINGS, rest, strict=True)}


def word(value: Any) -> str:
    """Return a setting's value as a readable word."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "unknown" if value is None else str(value).removeprefix("torch.")


@dataclass
class AmbientTable:
    """The settings recorded so far; a call stores the number of its row."""

    rows: list[Key] = field(default_factory=list)
    at_start: Key = field(default_factory=current)
    """The settings when the pass began."""
    _latest: Key = ()
    _quick: tuple[Any, ...] = ()
    _number: int = -1

    def number(self, every: bool) -> int:
        """Return the row of the current settings; add it if it is new.

        Without `every`, settings that few functions depend on (attention backends, matmul precision) are read only when
        another setting has changed.
        """
        device = _device.CURRENT_DEVICE
        quick = _grad(), _inference(), _dtype(), _deterministic(), _any_autocast(), _threads(), _onednn(), device
        if every or quick != self._quick or quick[4]:
            self._quick = quick
            key = current()
            if key != self._latest:
                self._latest = key
                if key not in self.rows:
                    self.rows.append(key)
                self._number = self.rows.index(key)
        return self._number


@contextlib.contextmanager
def in_force(key: Key) -> Iterator[None]:
    """Set recorded settings, and restore the current ones at the end."""
    grad, inference, autocast, device, *rest = key
    before = current()
    with contextlib.ExitStack() as stack:
        stack.callback(_set_all, before[4:])
        if device is not None and device != before[3]:
            stack.enter_context(device)
        if inference != before[1]:
            stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        for kind, dtype, cache in autocast or before[2] or ():
            on = bool(autocast)
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=on, cache_enabled=cache))
        _set_all(rest)
        yield


def _set_all(values: Any) -> None:
    for setting, value in zip(SETTINGS, values, strict=True):
        if value is not None and value != setting.value():
            setting.set(value)
