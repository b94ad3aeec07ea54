"""What a call of a model may change and nobody asked it to, so that it can be put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import overwrite

_HOMES = ("_buffers", "_parameters", "_modules")


class ModuleState:
    """Attributes, parameters, buffers and submodules of all modules, and the contents of buffers and inputs.

    Contents count also where a write is not recorded (``.data``).

    Parameters
    ----------
    model
        The model.
    inputs
        Its arguments.
    others
        Further tensors whose contents count.
    """

    def __init__(self, model: torch.nn.Module, inputs: Any = (), others: Iterable[torch.Tensor] = ()) -> None:
        self._homes = [
            (address, home, dict(home))
            for address, module in named_modules(model)
            for home in (vars(module), *(vars(module)[name] for name in _HOMES))
            if isinstance(home, dict)  # of a scripted module they are views of what C++ has
        ]
        held = [*(buffer for _, buffer in named_buffers(model)), *tensors(inputs), *others]
        self._contents = {id(tensor): (tensor, duplicate(tensor)) for tensor in held if not is_lazy(tensor)}

    def add(self, tensor: torch.Tensor, contents: torch.Tensor) -> None:
        """Let a tensor get these contents back, unless others are known."""
        self._contents.setdefault(id(tensor), (tensor, contents))

    def changed(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the tensors that hold something else than before, and what they held."""
        return [(now, then) for now, then in self._contents.values() if fingerprint(now) != fingerprint(then)]

    def name_of(self, tensor: torch.Tensor) -> str:
        """Return the address of the attribute or buffer that held a tensor; ``""`` if none did."""
        for address, _, members in self._homes:
            for name, member in members.items():
                if name not in _HOMES and any(each is tensor for each in tensors(member)):
                    return f"{address}.{name}".lstrip(".")
        return ""

    def restore(self) -> None:
        """Put all of it back."""
        for _, home, members in self._homes:
            if home.keys() != members.keys() or any(home[name] is not each for name, each in members.items()):
                home.clear()
                home.update(members)
        overwrite_unseen(self.changed())


def overwrite_unseen(contents: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Overwrite tensors; autograd does not see it, for in the end all hold what they held."""
    for tensor, held in contents:
        counted = contextlib.nullcontext() if tensor.is_inference() else _unsafe_preserve_version_counter(tensor)
        with counted:
            overwrite(tensor, held)
