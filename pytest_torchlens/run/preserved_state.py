"""Restores global state that a model changed, so that the next model starts from the same state.

Environment variables are not restored: libraries set theirs on import, once for all models.  Hooks on saved tensors
that a model never leaves also stay, because PyTorch does not list them.  An inference guard that the model still holds
undoes its change when it is freed, after everything else was restored.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable
from collections.abc import Iterator
from functools import partial
from typing import Any
from typing import NamedTuple

import numpy as np
import torch
from torch import _C
from torch.nn.modules import module as nn_module
from torch.overrides import _get_current_function_mode_stack
from torch.overrides import _pop_mode
from torch.overrides import _push_mode
from torch.utils import _device
from torch.utils import _python_dispatch

from pytest_torchlens.capture.ambient import SETTINGS
from pytest_torchlens.capture.ambient import Setting
from pytest_torchlens.capture.ambient import word


@contextlib.contextmanager
def preserved_global_state() -> Iterator[list[str]]:
    """Restore the settings of the process that the block changed.

    Yields
    ------
    list of str
        Sentences about what was changed; filled at the end.
    """
    before, path = [_value(setting) for setting in _SETTINGS], list(sys.path)
    changes: list[str] = []
    try:
        yield changes
    finally:
        now = [_value(setting) for setting in _SETTINGS]
        for setting, value, found in zip(_SETTINGS, before, now, strict=True):
            if value is not None and found != value:
                changes.append(f"it changed the {setting.name} to {word(found)}, which {_put_back(setting, value)}")
        for setting, value in zip(_SETTINGS, before, strict=True):  # restoring one may change another
            if value is not None:
                _put_back(setting, value)
        if gone := [folder for folder in path if folder not in sys.path]:
            sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
            changes.append(f"it took {len(gone)} of {len(path)} folders from sys.path, which were put back")


def _value(setting: Setting) -> Any:
    """Return the present value; None if it cannot be read, so that the other settings are still restored."""
    try:
        return setting.value()
    except Exception:  # noqa: BLE001 - must not replace the model's own error
        return None


def _put_back(setting: Setting, value: Any) -> str:
    try:
        if _value(setting) != value:  # restoring another may have restored it
            setting.set(value)
    except Exception as error:  # noqa: BLE001 - the others must still be restored
        return f"could not be put back: {error}"
    return "was put back"


_ABSENT = object()


def _leave(modes: list[Any], found: list[Any], stack: Callable[[], list[Any]], pop: Callable[[Any], object]) -> int:
    """Exit the modes of `modes` above the part that it shares with `found`; return the length of that part."""
    shared = 0
    while shared < min(len(modes), len(found)) and modes[shared] is found[shared]:
        shared += 1
    for mode in reversed(modes[shared:]):
        height = len(stack())
        with contextlib.suppress(Exception):  # the model's own code
            mode.__exit__(None, None, None)
        if len(stack()) == height:
            pop(mode)
    return shared


class _FunctionModes:
    """The stack of function modes, without the default devices that are on the same stack."""

    of_device = False

    def __init__(self) -> None:
        self.stack: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        self.device = _device.CURRENT_DEVICE
        self.default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", _ABSENT)

    def put_back(self) -> None:
        now = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        modes, found = (
            [one for one in stack if not isinstance(one, _device.DeviceContext)] for stack in (now, self.stack)
        )
        _leave(modes, found, _get_current_function_mode_stack, lambda _: _pop_mode())  # type: ignore[no-untyped-call]
        for _ in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            _pop_mode()  # type: ignore[no-untyped-call]
        for mode in self.stack:
            _push_mode(mode)  # type: ignore[no-untyped-call]
        _device.CURRENT_DEVICE = self.device
        if self.default is not _ABSENT:
            torch._GLOBAL_DEVICE_CONTEXT.device_context = self.default
        elif hasattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context"):
            del torch._GLOBAL_DEVICE_CONTEXT.device_context

    def modes(self) -> list[Any]:
        return [mode for mode in self.stack if isinstance(mode, _device.DeviceContext) is self.of_device]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FunctionModes) and self.modes() == other.modes()

    __hash__ = None  # type: ignore[assignment] # only compared

    def __str__(self) -> str:
        return str(_Names(self.modes()))


class _DefaultDevice(_FunctionModes):
    """The default device, set by `torch.set_default_device` or by a ``with torch.device(...)`` that was not left."""

    of_device = True

    def __str__(self) -> str:
        return str(self.modes()[-1].device) if self.modes() else "cpu"


class _Names(tuple[Any, ...]):
    """Objects that print as their names."""

    def __str__(self) -> str:
        return ", ".join(getattr(one, "__name__", type(one).__name__) for one in self) or "none"


def _set_dispatch_modes(modes: _Names) -> None:
    stack = _python_dispatch._get_current_dispatch_mode_stack
    for keyed in (False, True):  # PyTorch's own modes are listed above the others
        now, found = ([one for one in some if (_mode_key(one) is not None) is keyed] for some in (stack(), modes))
        shared = _leave(now, found, stack, lambda mode: _python_dispatch._pop_mode(_mode_key(mode)))
        for mode in found[shared:]:
            _python_dispatch._push_mode(mode)


def _mode_key(mode: Any) -> Any:
    return getattr(mode, "_mode_key", None)


def _hooks() -> tuple[dict[int, Any], ...]:
    """Return PyTorch's tables of global module hooks."""
    tables = (value for name, value in vars(nn_module).items() if name.startswith("_global_"))
    return tuple(table for table in tables if isinstance(table, dict))


_HOOKS = _hooks()


class _Hooks(NamedTuple):
    """The contents of these tables."""

    tables: tuple[dict[int, Any], ...]
    full: bool | None
    """Whether the backward hooks are full ones; None without any."""

    @classmethod
    def get(cls) -> _Hooks:
        return cls(tuple(dict(table) for table in _HOOKS), nn_module._global_is_full_backward_hook)

    def set(self) -> None:
        for table, found in zip(_HOOKS, self.tables, strict=True):
            table.clear()
            table.update(found)
        nn_module._global_is_full_backward_hook = self.full

    def __str__(self) -> str:
        return str(_Names(hook for table in self.tables for hook in table.values() if callable(hook)))


_INFERENCE: list[Any] = []
"""Guards that keep inference mode restored: freeing one would undo it."""


def _set_inference(on: bool) -> None:
    gc.collect()  # the model's own guard, if freed later, would change the mode again
    if torch.is_inference_mode_enabled() is not on:
        _INFERENCE.append(_C._InferenceMode(on))


def _set_anomaly(on: bool) -> None:
    torch.set_anomaly_enabled(on, torch.is_anomaly_check_nan_enabled())


def _set_errors(errors: dict[str, Any]) -> None:
    np.seterr(**errors)


def _collect_garbage(on: bool) -> None:
    (gc.enable if on else gc.disable)()


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - a string is quicker
    except OSError:  # it was removed, or cannot be read
        return ""


def _precisions() -> Iterator[Setting]:
    """Yield PyTorch's new settings for TF32, if it has them; those that set several others first."""
    if not hasattr(_C, "_get_fp32_precision_getter"):
        return
    operations = [(backend, kind) for backend in ("cuda", "mkldnn") for kind in ("all", "matmul", "conv", "rnn")]
    for place in [("generic", "all"), *operations]:
        get, put = partial(_C._get_fp32_precision_getter, *place), partial(_C._set_fp32_precision_setter, *place)
        yield Setting(f"precision of float32 in {' '.join(place)}", get, put)


def _autocast() -> Iterator[Setting]:
    for kind in ("cpu", "cuda"):
        on, put = partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)
        yield Setting(f"autocast on {kind}", on, put)
        dtype, put = partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind)
        yield Setting(f"dtype of autocast on {kind}", dtype, put)
    yield Setting("cache of autocast", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    yield Setting("nesting of autocast", _nesting, _set_nesting)


def _nesting() -> int:
    level = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return level


def _set_nesting(level: int) -> None:
    now = _nesting()
    for _ in range(level, now):
        torch.autocast_decrement_nesting()
    for _ in range(now, level):
        torch.autocast_increment_nesting()
    torch.clear_autocast_cache()  # cached casts of weights would be stale once the weights change


_SETTINGS = (
    Setting("default device", _DefaultDevice, _DefaultDevice.put_back),
    Setting("torch function modes", _FunctionModes, _FunctionModes.put_back),
    Setting("dispatch modes", lambda: _Names(_python_dispatch._get_current_dispatch_mode_stack()), _set_dispatch_modes),
    Setting("inference mode", torch.is_inference_mode_enabled, _set_inference),
    Setting("anomaly mode", torch.is_anomaly_enabled, _set_anomaly),
    *_autocast(),
    *SETTINGS,
    *_precisions(),  # after the old settings, which set these too
    Setting(
        "filling of uninitialized memory",
        _C._get_deterministic_fill_uninitialized_memory,
        _C._set_deterministic_fill_uninitialized_memory,
    ),
    Setting("oneDNN deterministic", _C._get_mkldnn_deterministic, _C._set_mkldnn_deterministic),
    Setting("quantized engine", _C._get_qengine, _C._set_qengine),
    Setting("fast path of attention", torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    Setting("hooks on all modules", _Hooks.get, _Hooks.set),
    Setting("error handling of numpy", np.geterr, _set_errors),
    Setting("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("garbage collection", gc.isenabled, _collect_garbage),
    Setting("working folder", _folder, os.chdir),
    Setting("gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),  # last: inference mode sets it as well
)
