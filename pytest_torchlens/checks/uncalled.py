"""Keeps a copy of a model as it was before its first call, to compare with what its calls leave in it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.checks.surroundings import Surroundings


@dataclass(frozen=True)
class Uncalled:
    """A copy of a model that shares its parameters, and nothing else.

    Attributes
    ----------
    model
        The copy.
    is_new
        Whether nobody had called the model before it was copied.
    surroundings
        What the code around the model held then.
    """

    model: nn.Module
    is_new: bool
    surroundings: Surroundings
    _digests: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module, *, is_new: bool) -> Uncalled | None:
        """Return the copy; None if the model cannot be copied so."""
        with torch._C.DisableTorchFunction():
            parameters = [tensor for _, tensor in named_parameters(model)]
            if any(map(is_lazy, parameters)):
                return None
            try:
                made = copy.deepcopy(model, {id(tensor): tensor for tensor in parameters})
            except Exception:  # noqa: BLE001 - a model may refuse to be copied in any way
                return None
        return cls(made, is_new, Surroundings(model), digests_of(model))

    def has_weights_of(self, model: nn.Module) -> bool:
        """Return whether no call has written to the parameters since."""
        return self._digests == digests_of(model)


def digests_of(model: nn.Module) -> tuple[str, ...]:
    """Return the fingerprints of all parameters; of those without a shape yet none."""
    with torch._C.DisableTorchFunction():
        tensors = [tensor for _, tensor in named_parameters(model) if not is_lazy(tensor)]
        return tuple(fingerprint(tensor.detach()) for tensor in tensors)
