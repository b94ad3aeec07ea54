"""Edits of gradients, and what a backward pass through an edited pass does not do."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import Group
from pytest_torchlens.capture.calls import values_read
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.edit.changes import replacement
from pytest_torchlens.edit.places import Place


class GradientChange:
    """Leaves a tensor as it is, and changes its gradient in a later backward pass.

    Parameters
    ----------
    recording
        The recorded pass.
    place
        Where.
    change
        What is put in the place of the gradient.
    """

    is_of_gradient = True

    def __init__(self, recording: Recording, place: Place, change: Any) -> None:
        if reason := _why_no_gradient(recording, place.value):
            raise ValueError(f"edit of the gradient of {place.text}: {reason}")
        self.place = dataclasses.replace(place, label=f"the gradient of {place.label}")
        self.change = change
        self.where = place.text.removeprefix(place.label).replace(" ", " at ", 1)
        """The part of the gradient, in words."""
        replacement([(self.place, change)])  # checks it

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same values, whose gradient is changed."""
        if not tensor.requires_grad:
            raise ValueError(
                f"edit of {self.place.text}: it has none, as another edit put a tensor there that requires none"
            )
        tensor = tensor.view_as(tensor)
        tensor.register_hook(self._changed)  # type: ignore[no-untyped-call]
        return tensor

    def _changed(self, gradient: torch.Tensor) -> torch.Tensor:
        place = dataclasses.replace(self.place, value=Value(0, 0, 0, gradient))
        return replacement([(place, self.change)]).tensor(lambda: gradient)


def _why_no_gradient(recording: Recording, value: Value) -> str:
    """Return why a value has no gradient; ``""`` if it has one."""
    if value.requires_grad:
        return ""
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        return f"values of {value.dtype} have none"
    if any(other.requires_grad for call in recording.calls for other in call.outputs):
        return "it has none, as no parameter or input that requires gradients is before it, or it was detached"
    return "the pass has no gradients: record outside of torch.no_grad(), with parameters or inputs that require them"


def warn_of_replay(recording: Recording, numbers: Iterable[int], stacklevel: int) -> None:
    """Warn if gradients through a replay of these calls are others than in the model."""
    if _has_gradients(recording):
        for reason in dict.fromkeys(_own_gradients(recording, sorted(numbers))):
            warnings.warn(f"edit: {reason}", stacklevel=stacklevel)


def _own_gradients(recording: Recording, numbers: list[int]) -> Iterator[str]:
    """Yield what autograd would run in the model and does not run in a replay."""
    for number in numbers:
        call = recording.calls[number]
        if group := _custom(call.group):
            if group.name == _CHECKPOINT:
                yield "no gradients flow through a reentrant checkpoint in a replay; record with use_reentrant=False"
                continue
            address = "" if call.module is None else call.module.address
            hooks = f"the backward hooks of {address or 'the model'}"
            what = hooks if group.name == _MODULE_HOOKS else f"{group.name}, a custom autograd function,"
            yield f"no gradients flow through {what} in a replay; in a live pass (live=True) they do"
        if any(value.tensor is not None and value.tensor._backward_hooks for _, value in values_read(call)):
            yield f"a replay does not run the hook on the gradient of what {call.info.name} reads; a live pass does"


def _has_gradients(recording: Recording) -> bool:
    """Return whether the model returned what a backward pass can begin at."""
    return any(tensor.requires_grad for tensor in tensors(recording.output))


_CHECKPOINT = torch.utils.checkpoint.CheckpointFunction.__name__
_MODULE_HOOKS = torch.nn.modules._functions.BackwardHookFunction.__name__


def _custom(group: Group | None) -> Group | None:
    """Return the custom autograd function that a call is part of; None if it is part of none."""
    while group is not None and not group.custom:
        group = group.parent
    return group


def is_in_checkpoint() -> bool:
    """Return whether a checkpoint calls the code that runs now, and will call it again in a backward pass."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            return True
    return False


def warn_of_checkpoint(recording: Recording, label: str, stacklevel: int) -> None:
    """Warn that the recomputation of a checkpoint does not make the edit of an operation inside it."""
    if _has_gradients(recording):
        warnings.warn(
            f"edit: {label} is inside a checkpoint, which a backward pass runs again without the edit: gradients "
            "through it are wrong; turn the checkpoint off to take them",
            stacklevel=stacklevel,
        )
