"""Takes activations of a recorded pass: the saved ones, and others computed from these."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pytest_torchlens.capture import Value
from pytest_torchlens.edit.changes import cut
from pytest_torchlens.edit.places import Part
from pytest_torchlens.edit.places import Place
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.replay import Subgraph


def activations(history: ModelHistory, places: Iterable[Place]) -> dict[str, torch.Tensor]:
    """Return the activations of a pass at places of this or another one, by label.

    Raises
    ------
    LookupKeyError, ValueError
        If the pass has no such activation, several for one label, or one of another shape.
    """
    whole = Subgraph(history)
    by_label = {place.label: place for place in places}
    ends = {label: _value(whole, label) for label in by_label}
    for label, place in by_label.items():
        if tuple(ends[label].shape) != tuple(place.value.shape):
            here, there = list(place.value.shape), list(ends[label].shape)
            raise ValueError(f"{label} has shape {here}, and {there} in the other pass: give inputs of one shape")
    found = Subgraph(history, end=ends).run_with({}) if ends else {}
    return {label: tensor.detach() for label, tensor in found.items()}


def _value(whole: Subgraph, label: str) -> Value:
    try:
        (_, value), *more = whole.swappable(label)
    except LookupKeyError as error:
        raise LookupKeyError(f"the other pass did not run the same operations: {error}") from None
    if more:
        raise ValueError(f"{label} has 1 pass, and {len(more) + 1} in the other pass: name one of them in an edit")
    return value


def patches(history: ModelHistory, places: Iterable[Place]) -> dict[Part, torch.Tensor]:
    """Return edits that put the activations of a pass into places of this or another one."""
    places = list(places)
    values = activations(history, places)
    return {key_of(place): cut(place, values[place.label]) for place in places}


def key_of(place: Place) -> Part:
    """Return a key of an edit that names a place."""
    return Part.of(place.label, place.consumer_label or None, place.index)
