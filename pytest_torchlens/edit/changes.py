"""Makes the tensor that an edit puts in the place of another: of numbers, tensors, functions, other activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.edit.places import Place
from pytest_torchlens.history.layers_and_operations import Layer
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.replay.swaps import Kind
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
    of_gradients = [(place, change) for place, change in changes if getattr(change, "is_of_gradient", False)]
    if of_gradients and len(changes) > 1:
        _check_apart([change.place for _, change in of_gradients])
        of_values = [each for each in changes if each not in of_gradients]
        return _InTurn([replacement(some) for some in (of_values, *([each] for each in of_gradients)) if some])
    place, change = changes[0]
    if place.index is None and len(changes) == 1:
        return Replacement(f"edit of {place.text}", Kind.of(place.value), _given(place, change))
    try:
        _check_apart([each for each, _ in changes])
    except IndexError as error:  # of a live pass, in which the value has another shape
        raise ValueError(f"edit of {place.text}: it does not fit shape {list(place.value.shape)}: {error}") from None
    return _Parts([(each.index, _of_part(each, _given(each, change))) for each, change in changes])


def _check_apart(places: list[Place]) -> None:
    """Raise if an element is in two places, or twice in one: then their order would matter."""
    if len(places) > 1 and any(place.index is None for place in places):
        other = next((place.text for place in places if place.index is not None), "by another key: name it once")
        raise ValueError(f"{places[0].label} is edited twice: as a whole, and {other}")
    taken = torch.zeros(tuple(places[0].value.shape), dtype=torch.bool)
    number = 0
    for place in places:
        part = taken[place.index]
        if part.any():
            raise ValueError(f"{place.text} is edited twice: name each element in one edit only")
        taken[place.index] = True
        number += part.numel()
        if int(taken.count_nonzero()) < number:
            raise ValueError(f"{place.text} names an element twice: name each one once")


def _given(place: Place, change: Any) -> Any:
    """Return a change with the tensor in place of an activation of a history: of a whole one what is at the place."""
    if not isinstance(change, LoggedOperation):
        return change
    saved = change.tensor_contents
    if saved is None:
        raise ValueError(
            f"edit of {place.label}: the activation {change.label} was not saved in its history: "
            "record that pass with layers_to_save='all'"
        )
    if change.fingerprint and fingerprint(saved) != change.fingerprint:
        raise ValueError(
            f"edit of {place.label}: what is saved of {change.label} is not the activation: save options transformed "
            "it, or it was overwritten since; patch_from(other, key) computes the activation"
        )
    return cut(place, saved)


def cut(place: Place, whole: torch.Tensor) -> torch.Tensor:
    """Return the part of another pass's activation that takes the place of this one; another shape stays as it is."""
    return whole if place.index is None or whole.shape != place.value.shape else whole[place.index]


def _of_part(place: Place, change: Any) -> Replacement:
    """Return what takes the place of a part; a tensor with the shape of the whole is the change by its own part."""
    whole = Kind.of(place.value)
    part = torch.empty(whole.shape, dtype=torch.bool)[place.index]
    kind = whole._replace(shape=tuple(part.shape), stride=torch.empty(part.shape, device="meta").stride())

    def fitted(new: Any) -> Any:
        is_whole = isinstance(new, torch.Tensor) and new.shape == whole.shape != kind.shape
        return new[place.index] if is_whole else new

    if callable(change) and not isinstance(change, torch.Tensor | type):
        return Replacement(f"edit of {place.text}", kind, lambda tensor: fitted(change(tensor)))
    return Replacement(f"edit of {place.text}", kind, fitted(change))


class _InTurn(Replacement):
    """Changes a tensor, then the gradient of what it became."""

    def __init__(self, replacements: list[Replacement]) -> None:
        self._replacements = replacements
        self.is_function = True

    def tensor(self, old: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the changed tensor; `old` returns the value itself."""
        new = old()
        for each in self._replacements:
            new = each.tensor(partial(_itself, new))
        return new


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Parts(Replacement):
    """Changes parts of a tensor, each computed from the tensor as it was.

    Parameters
    ----------
    parts
        Index and replacement of each.
    """

    def __init__(self, parts: list[tuple[Any, Replacement]]) -> None:
        self._parts = parts
        self.is_function = True

    def tensor(self, old: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the changed tensor; `old` returns the value itself."""
        former = old()
        new = [(index, part.tensor(partial(former.__getitem__, index))) for index, part in self._parts]
        result = former.clone()
        for index, contents in new:
            result[index] = contents
        return result
