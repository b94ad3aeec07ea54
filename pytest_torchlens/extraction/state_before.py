"""The state before a pass, so that the same batch can run again."""

from __future__ import annotations

from typing import Any

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.edit.module_state import ModuleState


class StateBefore:
    """Restores the random generators; with contents, what a pass changed too; names the buffers that were replaced.

    Parameters
    ----------
    model
        The model.
    inputs
        Its arguments.
    with_contents
        Whether attributes of modules, and contents of buffers and inputs, are restored.

    Attributes
    ----------
    generators
        The states of the random generators.
    """

    def __init__(self, model: torch.nn.Module, inputs: Any, *, with_contents: bool) -> None:
        self.generators = Generators()
        self._model = model
        self._buffers = dict(named_buffers(model))
        self._state = ModuleState(model, inputs) if with_contents else None

    def rebound(self) -> list[str]:
        """Return the buffers that are other tensors than before, with other contents; also those added or removed."""
        after = dict(named_buffers(self._model))
        names = sorted(self._buffers.keys() | after.keys())
        return [f"buffer {name!r}" for name in names if not _same(self._buffers.get(name), after.get(name))]

    def lost(self, touched: list[str]) -> list[str]:
        """Return what a pass wrote to that `restore` does not put back; names begin with the kind."""
        kinds = () if self._state is None else ("buffer", "input")
        return [label for label in touched if not label.startswith(kinds)]

    def restore(self) -> None:
        """Put all of it back."""
        self.generators.restore()
        if self._state is not None:
            self._state.restore()


def _same(before: torch.Tensor | None, after: torch.Tensor | None) -> bool:
    if before is None or after is None or is_lazy(before) or is_lazy(after):
        return before is after
    alike = before.shape == after.shape and before.dtype == after.dtype
    return before is after or (alike and fingerprint(before) == fingerprint(after))
