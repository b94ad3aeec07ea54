"""Takes activations of a recorded pass: the saved ones, and others computed from these."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pytest_torchlens.edit.places import Part
from pytest_torchlens.edit.places import Place
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.replay import Subgraph


def activations(history: ModelHistory, places: Iterable[Place]) -> dict[str, torch.Tensor]:
    """Return the activations of a pass at places of this or another one, by label.

    Raises
    ------
    LookupKeyError
        If the pass has no such activation.
    """
    whole = Subgraph(history)
    labels = dict.fromkeys(place.label for place in places)
    try:
        ends = {label: whole.swappable(label)[0][1] for label in labels}
    except LookupKeyError as error:
        raise LookupKeyError(f"the other pass did not run the same operations: {error}") from None
    found = Subgraph(history, end=ends).run_with({}) if ends else {}
    return {label: tensor.detach() for label, tensor in found.items()}


def key_of(place: Place) -> Part:
    """Return a key of an edit that names a place."""
    part = Part(place.label, place.consumer_label or None)
    part.index = place.index
    return part
