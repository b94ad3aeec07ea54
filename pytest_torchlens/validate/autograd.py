"""What autograd knows of a tensor: whether it is followed, where it came from, its gradient and its hooks."""

from __future__ import annotations

from typing import Any

import torch

from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.capture.origins import gradient_of

Tensor = torch.Tensor


class Followed:
    """One tensor as autograd has it now."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._required = tensor.requires_grad
        self._made_by = _made_by(tensor)
        self._gradient = gradient_of(tensor)
        self._values = None if self._gradient is None else self._gradient.detach().clone()
        self._hooks = getattr(tensor, "_backward_hooks", None)
        self._hooked = dict(self._hooks or {})

    def restore(self) -> None:
        """Put back what can be: a history that came up is cut off; one that there was cannot be made again."""
        if self._changed() and self._made_by is None and not self.tensor._is_view():
            self.tensor.detach_()
        if self.tensor.requires_grad != self._required and _made_by(self.tensor) is None:
            self.tensor.requires_grad_(self._required)
        if gradient_of(self.tensor) is not self._gradient:
            self.tensor.grad = self._gradient
        if self._gradient is not None and self._values is not None:
            overwrite(self._gradient, self._values)
        if getattr(self.tensor, "_backward_hooks", None) is not self._hooks:
            self.tensor._backward_hooks = self._hooks
        if self._hooks is not None and self._hooks != self._hooked:
            self._hooks.clear()
            self._hooks.update(self._hooked)

    def is_restored(self) -> bool:
        """Return whether its history is what it was; looking may give a view the history of its base."""
        return not self._changed()

    def _changed(self) -> bool:
        return self.tensor.requires_grad and _made_by(self.tensor) is not self._made_by


def _made_by(tensor: Tensor) -> Any:
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view that was made without gradients and written to, whose base has them
        return None
