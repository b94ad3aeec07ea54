"""Finds models that run during a test, selects modules and parameters by name, and checks arguments."""

from __future__ import annotations

import weakref
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from typing import Any

import torch
from torch.jit._script import RecursiveScriptModule
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

from pytest_torchlens.recorder.readings import is_measurable
from pytest_torchlens.records.names import nearest
from pytest_torchlens.records.options import TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from pytest_torchlens.recorder.recorder import Recorder


class ModelFinder:
    """Tracks every model that is called: layers and parameters.

    A model is the outermost module with parameters; a scalar from one without, such as ``nn.MSELoss()``, is the loss.

    Parameters
    ----------
    recorder
        The recorder that tracks the models.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._names: dict[str, int] = {}
        self._handles = [
            register_module_forward_pre_hook(self._is_called),
            register_module_forward_hook(self._has_returned),
        ]

    def close(self) -> None:
        """Stop finding models."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _is_called(self, module: nn.Module, _: Any) -> None:
        if (
            not torch.is_grad_enabled()
            or module in self._modules
            or not any(_.requires_grad for _ in module.parameters())
        ):
            return
        self._modules.update(module.modules())
        name = self._new_name(module)
        self._recorder.track_layers(module, name=name)
        self._recorder.track_parameters(module, name=name)

    def _has_returned(self, module: nn.Module, _: Any, output: Any) -> None:
        __tracebackhide__ = True
        if module in self._modules or not isinstance(output, torch.Tensor) or output.dim() or not output.requires_grad:
            return
        self._recorder.log(loss=output)

    def _new_name(self, module: nn.Module) -> str:
        name = type(module).__name__
        self._names[name] = number = self._names.get(name, 0) + 1
        return name if number == 1 else f"{name}-{number}"


def check_name(name: Any) -> None:
    """Check that it can be the name of an item.

    Raises
    ------
    TypeError
        If it cannot.
    """
    if not isinstance(name, str) or not name or not _is_utf8(name):
        raise TypeError(f"name: expected a non-empty string that can be encoded as UTF-8, got {name!r}")


def check_model(model: Any) -> None:
    """Check that it is a model.

    Raises
    ------
    TypeError
        If it is not.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")


def check_hooks(model: nn.Module) -> None:
    """Check that hooks can be registered on it.

    Raises
    ------
    TypeError
        If they cannot.
    """
    if not takes_hooks(model):
        raise TypeError(
            "PyTorch does not support hooks on a scripted model: track its parameters, or the model before scripting"
        )


def select_modules(model: nn.Module, globs: str | Sequence[str] | None) -> dict[str, nn.Module]:
    """Return the modules that match one of the globs, by path.

    The default is modules without submodules, and modules that own parameters, such as attention.

    Raises
    ------
    ValueError
        If a glob matches none.
    """
    modules = {path: module for path, module in model.named_modules() if path and takes_hooks(module)}
    if globs is not None:
        return {path: modules[path] for path in _matching("module", modules, globs)}
    computing = {path: module for path, module in modules.items() if _computes(module)}
    return computing or {type(model).__name__: model}


def select_parameters(model: nn.Module, globs: str | Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the parameters that match one of the globs, by name.

    Raises
    ------
    ValueError
        If a glob matches none, or a parameter is not initialized.
    """
    parameters = dict(model.named_parameters())
    matches = {name: parameters[name] for name in _matching("parameter", parameters, globs)}
    for name, parameter in matches.items():
        if is_lazy(parameter):
            raise ValueError(f"parameter {name!r} is not initialized: run the model once before you track it")
    return matches


def check_tensor(name: str, tensor: Any) -> None:
    """Check that it has a name and can be measured.

    Raises
    ------
    TypeError
        If it cannot.
    """
    check_name(name)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name!r}: expected a tensor, got {type(tensor).__name__}")
    if not is_measurable(tensor):
        raise TypeError(
            f"{name!r}: expected a non-empty tensor of floating-point or complex numbers, got {tuple(tensor.shape)} "
            f"{tensor.dtype} on {tensor.device}"
        )


def as_number(name: str, number: Any) -> float:
    """Return a number as a float.

    Raises
    ------
    TypeError
        If it is not.
    """
    if isinstance(number, torch.Tensor):
        number = number.detach()
    try:
        return float(number)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name}: expected a number or a tensor with one element, got {number!r}") from None


def _is_utf8(name: str) -> bool:
    return name.encode(errors="replace").decode() == name


def _computes(module: nn.Module) -> bool:
    return not any(module.children()) or any(True for _ in module.parameters(recurse=False))


def _matching(noun: str, names: dict[str, Any], globs: str | Sequence[str]) -> list[str]:
    if not isinstance(globs, str | list | tuple) or not globs or not all(isinstance(glob, str) for glob in globs):
        raise TypeError(f"expected {noun} globs such as '*.0' or ['features.*', 'head'], got {globs!r}")
    globs = [globs] if isinstance(globs, str) else list(globs)
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise ValueError(f"no {noun} matches {glob!r}; {nearest(glob, names)}")
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


def prefixed_name(name: str, path: str) -> str:
    """Return a path, prefixed with the name of its model.

    Raises
    ------
    TypeError
        If the name is not a string.
    """
    TEXT.check("name", name)
    return f"{name}.{path}" if name else path


def takes_hooks(module: nn.Module) -> bool:
    """Whether PyTorch supports hooks on a module; it does not on a scripted one."""
    return not isinstance(module, RecursiveScriptModule)
