"""Edits that put activations of another pass in their place, along all paths or some."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.edit.activations import patches
from pytest_torchlens.edit.places import Part
from pytest_torchlens.edit.places import Place
from pytest_torchlens.edit.places import places_in
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.replay import Subgraph


def patch_from(other: ModelHistory, *keys: Any, at: Any = None) -> dict[Part, torch.Tensor]:
    """Return edits that put activations of another pass in the place of those with the same labels.

    Parameters
    ----------
    other
        The history that they are taken from.
    *keys
        As in `ModelHistory.edit`: ``"relu_1"``, ``Part("relu_1")[:, 3]``, ``("relu_1", "add_2")``.
    at
        The index of keys that have none, as in `ModelHistory.edit`.

    Raises
    ------
    LookupKeyError, ValueError, TypeError
        If a key does not fit.
    NotReplayableError
        If an activation was not saved and cannot be computed.
    """
    return patches(other, places_in(other, keys, at))


def path_patch(
    history: ModelHistory,
    other: ModelHistory,
    sender: Any,
    *receivers: Any,
    frozen: Iterable[Any] = (),
    at: Any = None,
) -> dict[Part, torch.Tensor]:
    """Return edits that put into receivers what they are if a sender is as in another pass, along some paths alone.

    Two passes, as in path patching: `history` is edited with the sender's activation of `other`, while what is
    `frozen` stays as it was, and the receivers' activations of that pass are the edits.  For a single edge no second
    pass is needed: edit ``(sender, receiver)``.

    Parameters
    ----------
    history
        The pass that will be edited.
    other
        The pass that the sender's activation is taken from.
    sender, *receivers
        Keys as in `ModelHistory.edit`.
    frozen
        Keys of the activations, parts or edges that stay as in `history`: the paths through them are not taken.
        A warning says if no path is left, and the edits change nothing.
    at
        The index of the sender and the receivers that have none.

    Raises
    ------
    LookupKeyError, ValueError, TypeError
        If a key does not fit, there is no receiver, or one does not depend on the sender.
    DecisionChangedError, NotReplayableError
        If `history` cannot be edited so.
    """
    if not receivers:
        raise ValueError("path_patch: expected one receiver or more, got none")
    places = places_in(history, frozen)
    whole = {place.text: place for place in places if place.index is None}  # two keys may name one activation
    kept = [*whole.values(), *(place for place in places if place.index is not None)]
    senders = places_in(history, [sender], at)
    if both := [place.text for place in senders if place.text in {each.text for each in kept}]:
        raise ValueError(f"path_patch: {both[0]} is the sender, and frozen: leave it out of frozen")
    edits = patch_from(other, sender, at=at) | patches(history, kept)
    _check_reached(history, senders, receivers)
    patched = patch_from(history.edit(edits), *receivers, at=at)
    if kept:
        _warn_if_cut(history, patched, senders[0], kept)
    return patched


def _warn_if_cut(history: ModelHistory, patched: Mapping[Part, torch.Tensor], sender: Place, kept: list[Place]) -> None:
    """Warn if all receivers are as they were: the edits would change nothing."""
    as_they_were = patch_from(history, *patched).values()
    if all(fingerprint(one) == fingerprint(was) for one, was in zip(patched.values(), as_they_were, strict=True)):
        warnings.warn(
            f"path_patch: nothing of {sender.text} arrives at {_texts(places_in(history, patched.keys()))} while "
            f"{_texts(kept)} stays as it was: the edits change nothing. Leave out of "
            "frozen what lies on the paths that you ask about",
            stacklevel=3,
        )


def _texts(places: Iterable[Place]) -> str:
    return ", ".join(place.text for place in places)


def _check_reached(history: ModelHistory, senders: list[Place], receivers: Iterable[Any]) -> None:
    """Raise if a receiver does not depend on the sender: then its edit would put there what is there."""
    graph = Subgraph(history)
    values = {id(place.value) for place in senders if place.consumer is None}
    behind = graph.descendants(values, changed={place.consumer for place in senders} - {None})[1]  # type: ignore[arg-type]
    for receiver in receivers:
        places = places_in(history, [receiver])
        if not any(id(place.value) in behind for place in places):
            is_before = places[-1].value.call <= senders[0].value.call
            where = ": it comes before it" if is_before else ""
            raise ValueError(f"path_patch: the receiver {places[0].text} does not depend on {senders[0].text}{where}")
