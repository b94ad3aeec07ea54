"""What a model changed in its process is put back after it: the next one finds what it would find alone.

Variables of the environment are left: libraries set theirs as they are imported, once for all models.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
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
def left_as_found() -> Iterator[list[str]]:
    """Put settings of the process back at the end, those alone that were changed.

    Yields
    ------
    list of str
        What was changed, in sentences; it is filled at the end.
    """
    before, path = [setting.value() for setting in _SETTINGS], list(sys.path)
    changes: list[str] = []
    try:
        yield changes
    finally:
        now = [setting.value() for setting in _SETTINGS]
        for setting, value, found in zip(_SETTINGS, before, now, strict=True):
            if found != value:
                changes.append(f"it changed the {setting.name} to {word(found)}, which {_put_back(setting, value)}")
        if gone := [folder for folder in path if folder not in sys.path]:
            sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
            changes.append(f"it took {len(gone)} of {len(path)} folders from sys.path, which were put back")


def _put_back(setting: Setting, value: Any) -> str:
    try:
        if setting.value() != value:  # some come with others
            setting.set(value)
    except Exception as error:  # noqa: BLE001 - the others are to be put back all the same
        return f"could not be put back: {error}"
    return "was put back"


class _FunctionModes:
    """The stack of function modes as it is: default devices are on it as well, which are told apart."""

    of_device = False

    def __init__(self) -> None:
        self.stack: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        self.device = _device.CURRENT_DEVICE
        self.default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)

    def put_back(self) -> None:
        for _ in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            _pop_mode()  # type: ignore[no-untyped-call]
        for mode in self.stack:
            _push_mode(mode)  # type: ignore[no-untyped-call]
        _device.CURRENT_DEVICE = self.device
        torch._GLOBAL_DEVICE_CONTEXT.device_context = self.default

    def told(self) -> list[Any]:
        return [mode for mode in self.stack if isinstance(mode, _device.DeviceContext) is self.of_device]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FunctionModes) and self.told() == other.told()

    __hash__ = None  # type: ignore[assignment] # two of them are compared, and that is all

    def __str__(self) -> str:
        return str(_Names(self.told()))


class _DefaultDevice(_FunctionModes):
    """The default device: by `torch.set_default_device`, or by a ``with torch.device(...)`` that is not yet left."""

    of_device = True

    def __str__(self) -> str:
        return str(self.told()[-1].device) if self.told() else "cpu"


class _Names(tuple[Any, ...]):
    """Objects that are told by their names."""

    def __str__(self) -> str:
        return ", ".join(getattr(one, "__name__", type(one).__name__) for one in self) or "none"


def _set_dispatch_modes(modes: _Names) -> None:
    for _ in _python_dispatch._get_current_dispatch_mode_stack():
        _python_dispatch._pop_mode()
    for mode in modes:
        _python_dispatch._push_mode(mode)


def _hooks() -> tuple[dict[int, Any], ...]:
    """Return PyTorch's tables of hooks on all modules of the process."""
    tables = (value for name, value in vars(nn_module).items() if name.startswith("_global_"))
    return tuple(table for table in tables if isinstance(table, dict))


_HOOKS = _hooks()


class _Hooks(NamedTuple):
    """What stands in these tables."""

    tables: tuple[dict[int, Any], ...]

    @classmethod
    def get(cls) -> _Hooks:
        return cls(tuple(dict(table) for table in _HOOKS))

    def set(self) -> None:
        for table, found in zip(_HOOKS, self.tables, strict=True):
            table.clear()
            table.update(found)

    def __str__(self) -> str:
        return str(_Names(hook for table in self.tables for hook in table.values() if callable(hook)))


_INFERENCE: list[Any] = []
"""Guards that hold inference mode where it was found: letting one go would undo it."""


def _set_inference(on: bool) -> None:
    gc.collect()  # the model's own guard, let go of later, would change gradients with it
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
    except FileNotFoundError:  # it was removed
        return ""


def _precisions() -> Iterator[Setting]:
    """Yield PyTorch's new names for TF32, where it has them; what stands for several first."""
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


_SETTINGS = (
    Setting("default device", _DefaultDevice, _DefaultDevice.put_back),
    Setting("torch function modes", _FunctionModes, _FunctionModes.put_back),
    Setting("dispatch modes", lambda: _Names(_python_dispatch._get_current_dispatch_mode_stack()), _set_dispatch_modes),
    Setting("inference mode", torch.is_inference_mode_enabled, _set_inference),
    Setting("gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("anomaly mode", torch.is_anomaly_enabled, _set_anomaly),
    *_autocast(),
    *_precisions(),
    *SETTINGS,
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
)
