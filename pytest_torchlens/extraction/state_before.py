"""The state before a pass, so that the same batch can run again."""

from __future__ import annotations

from typing import Any

import torch

from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import overwrite


class StateBefore:
    """Restores the random generators; with buffers, these and the inputs too.

    Parameters
    ----------
    model
        The model.
    inputs
        Its arguments.
    with_buffers
        Whether buffers and inputs are copied.

    Attributes
    ----------
    generators
        The states of the random generators.
    """

    def __init__(self, model: torch.nn.Module, inputs: Any, *, with_buffers: bool) -> None:
        self.generators = Generators()
        self._has_buffers = with_buffers
        self._members = [(part, dict(part._buffers)) for _, part in named_modules(model)] if with_buffers else []
        held = [*(tensor for _, buffers in self._members for tensor in buffers.values()), *tensors(inputs)]
        plain = [tensor for tensor in held if tensor is not None and not is_lazy(tensor)] if with_buffers else []
        self._contents = [(tensor, duplicate(tensor)) for tensor in plain]

    def lost(self, touched: list[str]) -> list[str]:
        """Return what a pass wrote to that `restore` does not put back; names begin with the kind."""
        kinds = ("buffer", "input") if self._has_buffers else ()
        return [label for label in touched if not label.startswith(kinds)]

    def restore(self) -> None:
        """Put all of it back."""
        self.generators.restore()
        for part, buffers in self._members:
            part._buffers.update(buffers)
        for tensor, contents in self._contents:
            overwrite(tensor, contents)
