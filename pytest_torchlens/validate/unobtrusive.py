"""Runs our work inside a user's test without triggering its modes, hooks or warnings, or advancing its generators."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import torch
from torch._C import _autograd
from torch.overrides import _pop_mode as _pop_function_mode
from torch.overrides import _push_mode as _push_function_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from pytest_torchlens.capture.dispatch_watch import dispatch_modes_removed
from pytest_torchlens.capture.generators import Generators


@contextlib.contextmanager
def hooks_and_modes_disabled() -> Iterator[None]:
    """Disable modes, saved-tensor hooks and warnings, and preserve the random generators.

    ``__torch_function__`` of tensor subclasses is disabled too, except inside `torch._C._EnableTorchFunction`.
    """
    generators = Generators()
    try:
        with _no_saved_tensor_hooks(), _no_modes(), warnings_ignored(), torch._C.DisableTorchFunction():
            yield
    finally:
        generators.restore()


@contextlib.contextmanager
def modes_disabled() -> Iterator[None]:
    """Disable all modes, also fake tensors; the default device stays."""
    with _no_function_modes(), _disable_current_modes():
        yield


@contextlib.contextmanager
def warnings_ignored() -> Iterator[None]:
    """Ignore warnings by a filter inserted silently; `catch_warnings` would make once-only warnings appear again."""
    filters = warnings.filters
    assert isinstance(filters, list)  # noqa: S101 - for the type checker
    former = filters[:]
    filters.insert(0, ("ignore", None, Warning, None, 0))
    try:
        yield
    finally:
        filters[:] = former


@contextlib.contextmanager
def _no_modes() -> Iterator[None]:
    with _no_function_modes(), dispatch_modes_removed():
        yield


@contextlib.contextmanager
def _no_saved_tensor_hooks() -> Iterator[None]:
    hooks: list[tuple[Any, Any]] = []
    # PyTorch before 2.9 cannot list the hooks: calls under such hooks are not traced (run/untraced.py).
    topmost: Callable[[bool], Any] = getattr(_autograd, "_top_saved_tensors_default_hooks", lambda _: None)
    while top := topmost(True):
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextlib.contextmanager
def _no_function_modes() -> Iterator[None]:
    """Disable all function modes except the default device, which is a mode too."""
    modes = [_pop_function_mode() for _ in range(torch._C._len_torch_function_stack())][::-1]  # type: ignore[no-untyped-call]
    devices = [mode for mode in modes if isinstance(mode, DeviceContext)]
    for mode in devices:
        _push_function_mode(mode)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for _ in devices:
            _pop_function_mode()  # type: ignore[no-untyped-call]
        for mode in modes:
            _push_function_mode(mode)  # type: ignore[no-untyped-call]


def check_no_transform_runs(model: torch.nn.Module) -> None:
    """Raise RuntimeError inside a transform of `torch.func`: tensors there cannot be looked at."""
    running = torch._C._functorch.get_interpreter_stack() or []
    if any(one.key() != torch._C._functorch.TransformType.Functionalize for one in running):
        raise RuntimeError(
            f"{type(model).__name__} cannot be validated inside torch.func.grad, vmap or another transform: its values "
            "cannot be read or changed there. Validate it outside, on a plain tensor."
        )
