"""Makes the tensor that an edit puts in the place of another: of numbers, tensors, functions, other activations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from numbers import Number
from typing import Any

import torch

from pytest_torchlens.capture import Value
from pytest_torchlens.edit.places import Place
from pytest_torchlens.history.layers_and_operations import Layer
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.replay.swaps import Replacement

Change = float | torch.Tensor | Callable[[torch.Tensor], torch.Tensor] | LoggedOperation | Layer
"""A number for each element, a tensor of the same shape, a function of the tensor, an activation of a history."""


def for_each_pass(places: list[Place], change: Any) -> list[Any]:
    """Return the change at each place of a key: of a layer's activations each goes to the pass with its number."""
    if not isinstance(change, Layer):
        return [change] * len(places)
    if len(change.passes) != len(places):
        raise ValueError(
            f"edit of {places[0].label}: it has {len(places)} passes, {change.layer_label} has {len(change.passes)}: "
            f"name one of its passes, such as {change.passes[0].label!r}"
        )
    return list(change.passes)


def replacement(changes: list[tuple[Place, Any]]) -> Replacement:
    """Return what takes the place of one value, for which there may be several changes in different parts of it.

    Raises
    ------
    TypeError, ValueError
        If a change does not fit, or two of them are in the same part.
    """
    place, change = changes[0]
    if place.index is None and len(changes) == 1:
        return Replacement(place.label, place.value, _given(place, change))
    if any(other.index is None for other, _ in changes):
        raise ValueError(f"{place.label} is edited twice: as a whole, and {_other(changes).text}")
    _check_apart([each for each, _ in changes])
    parts = [_Part(each, _given(each, change)) for each, change in changes]
    return Replacement(place.label, place.value, _Parts(parts))


def _other(changes: list[tuple[Place, Any]]) -> Place:
    return next((place for place, _ in changes if place.index is not None), changes[1][0])


def _check_apart(places: list[Place]) -> None:
    """Raise if two places have elements in common: then their order would matter."""
    taken = torch.zeros(tuple(places[0].value.shape), dtype=torch.bool)
    for place in places:
        if taken[place.index].any():
            raise ValueError(f"{place.text} is edited twice: name each element in one edit only")
        taken[place.index] = True


def _given(place: Place, change: Any) -> Any:
    """Return a change with the tensor in place of an activation of a history."""
    if not isinstance(change, LoggedOperation):
        return change
    if change.tensor_contents is None:
        raise ValueError(f"edit of {place.label}: the activation {change.label} was not saved in its history")
    return change.tensor_contents


class GradientChange:
    """Leaves a tensor as it is, and changes its gradient in a later backward pass."""

    def __init__(self, place: Place, change: Any) -> None:
        self._place = place
        self._change = change
        self.__name__ = "gradient"
        if not place.value.requires_grad:
            raise ValueError(f"edit of {place.text}: it requires no gradient: record outside of torch.no_grad()")
        replacement([(place, change)])  # checks it

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same values, whose gradient is changed."""
        tensor = tensor.view_as(tensor)
        tensor.register_hook(self._changed)  # type: ignore[no-untyped-call]
        return tensor

    def _changed(self, gradient: torch.Tensor) -> torch.Tensor:
        place = dataclasses.replace(self._place, value=Value(0, 0, 0, gradient))
        return replacement([(place, self._change)]).tensor(lambda: gradient)


class _Part:
    """A change of one part of a tensor."""

    def __init__(self, place: Place, change: Any) -> None:
        self.index = place.index
        self._place = place
        self._change = change
        value = place.value
        self._shape = torch.empty(tuple(value.shape), dtype=torch.bool)[place.index].shape
        if isinstance(change, torch.Tensor):
            self._change = self._fitting(change)
        elif not (isinstance(change, Number) or callable(change)):
            raise TypeError(
                f"edit of {place.text}: expected a number, a tensor, a function or an activation, "
                f"got {type(change).__name__}"
            )
        elif isinstance(change, Number) and not torch.can_cast(torch.tensor(change).dtype, value.dtype):
            raise TypeError(f"edit of {place.text}: {change!r} does not fit {value.dtype}")

    def of(self, tensor: torch.Tensor) -> torch.Tensor | float:
        """Return what is put into the part of a tensor."""
        if not callable(self._change) or isinstance(self._change, torch.Tensor):
            return self._change  # type: ignore[no-any-return]
        new = self._change(tensor[self.index].clone())
        if not isinstance(new, torch.Tensor):
            got = type(new).__name__
            raise TypeError(f"edit of {self._place.text}: expected a tensor from the function, got {got}")
        return self._fitting(new)

    def _fitting(self, new: torch.Tensor) -> torch.Tensor:
        """Return a tensor that fits the part; of one with the shape of the whole, its part."""
        value = self._place.value
        if new.shape != self._shape and new.shape == value.shape:
            new = new[self.index]
        if new.shape != self._shape or new.dtype != value.dtype:
            raise ValueError(
                f"edit of {self._place.text}: expected {value.dtype} of shape {list(self._shape)}, "
                f"got {new.dtype} of shape {list(new.shape)}"
            )
        return new


class _Parts:
    """Changes parts of a tensor, each computed from the tensor as it was."""

    def __init__(self, parts: list[_Part]) -> None:
        self._parts = parts

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        new = [part.of(tensor) for part in self._parts]
        result = tensor.clone()
        for part, contents in zip(self._parts, new, strict=True):
            result[part.index] = contents
        return result
