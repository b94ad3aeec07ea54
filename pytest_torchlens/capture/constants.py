"""Names for tensors that no recorded call made: the attribute, container or global that holds them."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.storage import storage_key

_OF_TORCH = ("_parameters", "_buffers", "_modules")


def name_constants(recording: Recording, model: torch.nn.Module) -> None:
    """Name the constants that the model or a module of its code holds: ``"head._cache"``, ``"net.TABLE"``."""
    unnamed = [source for source in recording.sources if source.kind == "constant" and not source.name]
    if not unnamed:
        return
    names = {id(tensor): name for name, tensor in _held(model)}
    for source in unnamed:
        source.name = names.get(id(source.live), "")


def is_foreign(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stands on memory of NumPy's or another library's, as `torch.from_numpy` makes them."""
    return tensor.device.type == "cpu" and storage_key(tensor) != 0 and not tensor.untyped_storage().resizable()


def tensors_used(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the tensors that a module holds, registered or not, and the globals that its forwards name, each once."""
    used = [*module.buffers(), *module.parameters()]
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            used += [value for _, value in script_attributes(part) if isinstance(value, torch.Tensor)]
        else:
            used += [tensor for _, tensor in _tensors_in({**_attributes(part), **_named_by(part)}, "")]
    return list({id(tensor): tensor for tensor in used}.values())


def script_attributes(module: torch.jit.ScriptModule) -> list[tuple[str, Any]]:
    """Return name and value of what the methods of a scripted module assign to itself."""
    methods = [module._c._get_method(name) for name in module._c._method_names()]
    nodes = [node for method in methods for node in method.graph.findAllNodes("prim::SetAttr", recurse=True)]
    return [(name, module._c.getattr(name)) for name in {node.s("name") for node in nodes} if module._c.hasattr(name)]


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OF_TORCH}


def _named_by(module: torch.nn.Module) -> dict[str, Any]:
    """Return the globals and enclosed variables that a module's forward names."""
    forward = inspect.unwrap(getattr(module.forward, "__func__", module.forward))
    if not isinstance(forward, types.FunctionType):
        return {}
    enclosed = inspect.getclosurevars(forward)
    return {**enclosed.globals, **enclosed.nonlocals}


def _held(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor; the last of several names counts, so attributes of modules come after globals."""
    for module_name in sorted({type(module).__module__ for module in model.modules()}):
        scope = vars(sys.modules[module_name]) if module_name in sys.modules else {}
        yield from _tensors_in(dict(scope), module_name)
    for address, module in model.named_modules():
        yield from _tensors_in(_attributes(module), address)


def _tensors_in(scope: dict[str, Any], owner: str) -> Iterator[tuple[str, torch.Tensor]]:
    for attribute, value in scope.items():
        name = f"{owner}.{attribute}" if owner else attribute
        if isinstance(value, torch.Tensor):
            yield name, value
        elif type(value) in (list, tuple):
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(value) if isinstance(item, torch.Tensor))
        elif type(value) is dict:
            items = list(value.items())
            yield from ((f"{name}[{key!r}]", item) for key, item in items if isinstance(item, torch.Tensor))
