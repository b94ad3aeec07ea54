"""The state before a pass, so that the same batch can run again."""

from __future__ import annotations

from typing import Any

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import overwrite


class StateBefore:
    """Restores the random generators; with contents, buffers and inputs too; names the buffers that were replaced.

    Parameters
    ----------
    model
        The model.
    inputs
        Its arguments.
    with_contents
        Whether buffers and inputs are copied.

    Attributes
    ----------
    generators
        The states of the random generators.
    """

    def __init__(self, model: torch.nn.Module, inputs: Any, *, with_contents: bool) -> None:
        self.generators = Generators()
        self._has_contents = with_contents
        self._model = model
        self._buffers = dict(named_buffers(model))
        self._members = [(part, dict(part._buffers)) for _, part in named_modules(model)] if with_contents else []
        held = [*(tensor for _, buffers in self._members for tensor in buffers.values()), *tensors(inputs)]
        plain = [tensor for tensor in held if tensor is not None and not is_lazy(tensor)] if with_contents else []
        self._contents = [(tensor, duplicate(tensor)) for tensor in plain]

    def rebound(self) -> list[str]:
        """Return the buffers that are other tensors than before, with other contents; also those added or removed."""
        after = dict(named_buffers(self._model))
        names = sorted(self._buffers.keys() | after.keys())
        return [f"buffer {name!r}" for name in names if not _same(self._buffers.get(name), after.get(name))]

    def lost(self, touched: list[str]) -> list[str]:
        """Return what a pass wrote to that `restore` does not put back; names begin with the kind."""
        kinds = ("buffer", "input") if self._has_contents else ()
        return [label for label in touched if not label.startswith(kinds)]

    def restore(self) -> None:
        """Put all of it back."""
        self.generators.restore()
        for part, buffers in self._members:
            part._buffers.update(buffers)
        for tensor, contents in self._contents:
            overwrite(tensor, contents)


def _same(before: torch.Tensor | None, after: torch.Tensor | None) -> bool:
    if before is None or after is None or is_lazy(before) or is_lazy(after):
        return before is after
    alike = before.shape == after.shape and before.dtype == after.dtype
    return before is after or (alike and fingerprint(before) == fingerprint(after))
