"""Edits a recorded pass: changes activations, and computes what is behind them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.edit.differences import counterparts
from pytest_torchlens.edit.expand import bodies_of
from pytest_torchlens.edit.expand import expanded
from pytest_torchlens.edit.function import EditedFunction
from pytest_torchlens.edit.gradients import GradientChange
from pytest_torchlens.edit.gradients import warn_of_replay
from pytest_torchlens.edit.live import run_again
from pytest_torchlens.edit.places import Place
from pytest_torchlens.edit.recording import EditedRecording
from pytest_torchlens.edit.request import Request
from pytest_torchlens.edit.returned_arguments import warn_of_returned_arguments
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import AppliedEdit
from pytest_torchlens.replay import Subgraph


def edit(  # noqa: PLR0913 - the method's parameters, by name
    history: ModelHistory,
    edits: Mapping[Any, Any] | None,
    *,
    at: Any,
    inputs: Mapping[str, Any] | None,
    parameters: Mapping[str, Any] | None,
    gradients: Mapping[Any, Any] | None,
    expand: Iterable[str],
    live: bool,
    check_decisions: bool,
) -> ModelHistory:
    """Return the history of the edited pass; `ModelHistory.edit` has the parameters."""
    if expand:
        history = expanded(history, expand)
        if not (edits or inputs or parameters or gradients):
            return history
    request = Request(Subgraph(history), edits, at, inputs, parameters, gradients)
    warn_of_returned_arguments(request, live, stacklevel=4)
    recording = (
        run_again(history, request, bodies_of(history.expansions))
        if live
        else _replayed(history, request, check_decisions)
    )
    edited = ModelHistory(recording, history.options)
    edited.arguments, edited.expansions = history.arguments, history.expansions
    edited.original, edited.requests = history.original or history, (*history.requests, request)
    made = (*history.edits, *(applied(place, change) for place, change in request.changes))
    labels = {old: new for new, old in counterparts(history, edited).items()} if live else {}
    edited.edits = tuple(each.renamed(labels) for each in made)
    if live:
        edited.edits += tuple(_of_further_passes(edited))
    return edited


def _of_further_passes(edited: ModelHistory) -> Iterator[AppliedEdit]:
    """Yield the edits of passes that only a live run has, of layers that are edited in all passes."""
    known = {edit.label for edit in edited.edits}
    layers = {edit.label.rpartition(":")[0]: edit for edit in edited.edits if not edit.operation}
    for node in edited.nodes:
        is_edited = node.call is not None and isinstance(node.call.info.func, EditedFunction)
        if is_edited and node.label not in known and node.layer_label in layers:
            edit = layers[node.layer_label]
            yield edit.renamed({edit.label: node.label})


def applied(place: Place, change: Any) -> AppliedEdit:
    """Return an edit in words."""
    return AppliedEdit(place.label, place.text, _in_words(change), place.consumer_label)


def _in_words(change: Any) -> str:
    if isinstance(change, torch.Tensor):
        return f"a tensor of shape {list(change.shape)}"
    if isinstance(change, GradientChange):
        return f"{_in_words(change.change)} as its gradient{change.where}"
    if callable(change):
        name = getattr(change, "__name__", None) or type(change).__name__
        return "a function" if name == "<lambda>" else f"{name}(…)"
    label = getattr(change, "label", None) or getattr(change, "layer_label", None)
    return f"the activation {label}" if label else str(change)


def _replayed(history: ModelHistory, request: Request, check_decisions: bool) -> Recording:
    """Return the recording of the edited pass, for which what is behind the edits was replayed."""
    recording = history.recording
    for place, _ in request.changes:
        if place.consumer is None:
            request.whole.check_swappable(place.label, place.value)
    behind, affected = request.whole.descendants(request.swaps, changed=request.edges)
    warn_of_replay(recording, range(len(recording.calls)) if request.of_gradients else behind, stacklevel=5)
    kept = request.swaps.keys() | {id(value_of(read)) for _, read in recording.outputs}
    nodes = [node for node in history.nodes if id(node.value) in affected and node.kind != "output"]
    wanted = {node.label: node.value for node in nodes if id(node.value) in kept or recording.has_saved(node.value)}
    wanted |= {source.label: source.value for source in request.of_sources().values()}
    outputs = request.whole.model_outputs
    ends: dict[str, Value | Aliased] = {**wanted, **outputs}
    part = Subgraph(history, end=ends)
    results = part.run_with(request.swaps, check_decisions, edges=request.edges, feeds=not request.of_gradients)
    tensors = {id(value): results[label] for label, value in wanted.items()}
    edited = EditedRecording(recording, affected, tensors, history.options.saving)
    by_path = {path: results[label] for label, (path, _) in zip(outputs, recording.outputs, strict=True)}
    return edited.with_edits(request.of_calls(), by_path)
