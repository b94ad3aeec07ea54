"""Carries a model's values to another instance: by state_dict, to the meta device, by safetensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import nn

from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.record import seed_all
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.checks.held import memory_of
from pytest_torchlens.checks.subject import Subject


class NotCarriedError(Exception):
    """A model cannot be carried this way; the message says why."""


class UnseenError(Exception):
    """A way cannot be tried; the message says why."""


_SEED = 20240607
"""Seed for a fresh instance: another one than a zoo's, so that random attributes differ."""


def fresh_instance(subject: Subject) -> nn.Module:
    """Return another instance of a model, in its modes and dtypes, none of whose saved values are those of the model.

    Without a factory a copy stands for it.

    Raises
    ------
    UnseenError
        If there is none.
    """
    fresh = _built(subject) if subject.tools.build is not None else _copied(subject.model)
    if shared := memory_of(fresh).keys() & memory_of(subject.model).keys():
        raise UnseenError(f"the fresh instance shares memory with the model ({len(shared)} tensors)")
    _make_alike(fresh, subject.model)
    blank(fresh)
    return fresh


def built_instance(subject: Subject) -> nn.Module:
    """Return another instance, made by the factory, in the modes and dtypes of the model.

    Raises
    ------
    UnseenError
        If the factory raises.
    """
    fresh = _built(subject)
    _make_alike(fresh, subject.model)
    return fresh


def _built(subject: Subject) -> nn.Module:
    generators = Generators()
    try:
        seed_all(_SEED)
        assert subject.tools.build is not None  # noqa: S101 - the caller looked
        return subject.tools.build()
    except Exception as error:
        raise UnseenError(f"no fresh instance: the factory raised {type(error).__name__}: {error}") from error
    finally:
        generators.restore()


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise UnseenError(f"no factory is known, and copying raised {type(error).__name__}: {error}") from error


def _make_alike(fresh: nn.Module, model: nn.Module) -> None:
    """Give an instance the modes, dtypes and devices of the model: they are settings, not state."""
    modes = {address: module.training for address, module in named_modules(model)}
    for address, module in named_modules(fresh):
        if module.training != modes.get(address, module.training):
            module.training = modes[address]
    for named in (named_parameters, named_buffers):
        own = dict(named(model))
        for name, tensor in named(fresh):
            like = own.get(name)
            if like is not None and not is_lazy(tensor) and (tensor.dtype, tensor.device) != (like.dtype, like.device):
                tensor.data = tensor.data.to(like.device, like.dtype)


def blank(model: nn.Module) -> None:
    """Change all tensors of a model's state_dict.

    Raises
    ------
    NotCarriedError
        If there is no state_dict.
    UnseenError
        If one cannot be changed, as quantized ones.
    """
    with torch.no_grad():
        for name, tensor in state_of(model).items():
            if isinstance(tensor, torch.Tensor) and not is_lazy(tensor):
                try:
                    _change(tensor)
                except Exception as error:
                    raise UnseenError(f"{name!r} of a fresh instance cannot be changed: {error}") from error


def changed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a changed copy of a tensor."""
    with torch.no_grad():
        made = tensor.detach().clone()
        _change(made)
    return made


def _change(tensor: torch.Tensor) -> None:
    if tensor.dtype is torch.bool:
        tensor.logical_not_()
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.copy_(tensor * 0.5 + 0.25)
    else:
        tensor.copy_(torch.where(tensor > 0, tensor - 1, tensor + 1))  # within the range of an index


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return the state_dict of a model.

    Raises
    ------
    NotCarriedError
        If the model raises, or returns something else.
    """
    try:
        state = model.state_dict()
    except Exception as error:
        raise NotCarriedError(f"state_dict raised {type(error).__name__}: {error}") from error
    if not isinstance(state, Mapping):
        raise NotCarriedError(f"state_dict returned {type(state).__name__}, expected a mapping of names to tensors")
    return state


def load(model: nn.Module, fresh: nn.Module) -> None:
    """Load the state_dict of a model into another instance.

    Raises
    ------
    NotCarriedError
        If that raises.
    """
    _load(fresh, state_of(model), "load_state_dict")


def _load(fresh: nn.Module, state: dict[str, Any], words: str, **options: Any) -> Any:
    try:
        return fresh.load_state_dict(state, **options)
    except Exception as error:
        text = " ".join(str(error).split())
        raise NotCarriedError(f"{words} raised {type(error).__name__}: {text}") from error


def load_from_meta(model: nn.Module, fresh: nn.Module) -> list[str]:
    """Move what a state_dict holds to the meta device, load it with ``assign=True``; return what it does not hold.

    Raises
    ------
    NotCarriedError
        If that raises, or leaves a tensor on the meta device.
    """
    others = to_meta(fresh)
    _load(fresh, copy.deepcopy(state_of(model)), "load_state_dict(assign=True)", assign=True)
    left = [name for name, tensor in (*named_parameters(fresh), *named_buffers(fresh)) if tensor.is_meta]
    if left:
        raise NotCarriedError(f"load_state_dict(assign=True) leaves {left[0]!r} on the meta device")
    return others


def to_meta(model: nn.Module) -> list[str]:
    """Move parameters and persistent buffers to the meta device; return the names of the other buffers."""
    others: list[str] = []
    moved: dict[int, torch.Tensor] = {}
    for address, module in named_modules(model):
        own = instance_dict(module) or {}
        passing = own.get("_non_persistent_buffers_set", ())
        for kind in ("_parameters", "_buffers"):
            for name, tensor in own.get(kind, {}).items():
                if tensor is None or is_lazy(tensor):
                    continue
                if name in passing:
                    others.append(f"{address}.{name}" if address else name)
                    continue
                if id(tensor) not in moved:
                    made = tensor.detach().to("meta")
                    moved[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if kind == "_parameters" else made
                own[kind][name] = moved[id(tensor)]
    return others


def through_safetensors(model: nn.Module, fresh: nn.Module) -> None:
    """Write the state_dict of a model as safetensors, each tensor once, and load that into another instance.

    Raises
    ------
    NotCarriedError
        If that raises, or loses a value.
    UnseenError
        If the state_dict holds something else than tensors, as that of a quantized model.
    """
    state = state_of(model)
    if others := [name for name, value in state.items() if not isinstance(value, torch.Tensor)]:
        kind = type(state[others[0]]).__name__
        raise UnseenError(f"it holds tensors alone, and {others[0]!r} in the state_dict is {kind}, not a tensor")
    once: dict[Any, str] = {}
    for name, tensor in state.items():
        place = storage_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()
        once.setdefault(place if tensor.numel() else name, name)
    try:
        content = safetensors.torch.save({name: state[name].clone().contiguous() for name in once.values()})
        loaded = safetensors.torch.load(content)
    except Exception as error:
        raise NotCarriedError(f"safetensors raised {type(error).__name__}: {error}") from error
    found = _load(fresh, loaded, "load_state_dict from safetensors", strict=False)
    if lost := [name for name in getattr(found, "missing_keys", ()) if name in once.values()]:
        raise NotCarriedError(f"load_state_dict from safetensors misses {lost[0]!r}")
