"""Edits a recorded pass: changes activations, and computes what is behind them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import torch

from pytest_torchlens.capture.values import value_of
from pytest_torchlens.edit.differences import counterparts
from pytest_torchlens.edit.function import EditedFunction
from pytest_torchlens.edit.live import live_recording
from pytest_torchlens.edit.places import Place
from pytest_torchlens.edit.recording import EditedRecording
from pytest_torchlens.edit.request import Request
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import Node
from pytest_torchlens.records import AppliedEdit
from pytest_torchlens.replay import Subgraph


def edit(
    history: ModelHistory,
    edits: Mapping[Any, Any] | None,
    *,
    at: Any,
    inputs: Mapping[str, Any] | None,
    parameters: Mapping[str, Any] | None,
    live: bool,
    check_decisions: bool,
) -> ModelHistory:
    """Return the history of the edited pass; `ModelHistory.edit` has the parameters."""
    request = Request(Subgraph(history), edits, at, inputs, parameters)
    recording = live_recording(history, request) if live else _replayed(history, request, check_decisions)
    edited = ModelHistory(recording, history.options)
    edited.arguments = history.arguments
    edited.original = history.original or history
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
    if callable(change):
        name = getattr(change, "__name__", None) or type(change).__name__
        return "a function" if name == "<lambda>" else f"{name}(…)"
    label = getattr(change, "label", None) or getattr(change, "layer_label", None)
    return f"the activation {label}" if label else str(change)


def _replayed(history: ModelHistory, request: Request, check_decisions: bool) -> Any:
    """Return the recording of the edited pass, for which what is behind the edits was replayed."""
    recording = history.recording
    for place, _ in request.changes:
        if place.consumer is None:
            request.whole.check_swappable(place.label, place.value)
    _, affected = request.whole.descendants(request.swaps, changed=request.edges)
    nodes = [node for node in history.nodes if id(node.value) in affected and _is_wanted(node, history, request)]
    wanted = {node.label: node.value for node in nodes if node.kind != "output"}
    wanted |= {source.label: source.value for source in request.of_sources().values()}
    outputs = request.whole.model_outputs
    part = Subgraph(history, end=wanted | outputs)
    results = part.run_with(request.swaps, check_decisions, edges=request.edges)
    tensors = {id(value): results[label] for label, value in wanted.items()}
    edited = EditedRecording(recording, affected, tensors, history.options.saving)
    by_path = {path: results[label] for label, (path, _) in zip(outputs, recording.outputs, strict=True)}
    return edited.with_edits(request.of_calls(), by_path)


def _is_wanted(node: Node, history: ModelHistory, request: Request) -> bool:
    """Return whether a node's new activation is kept: its old one was, it is edited, or the model returns it."""
    stream = history.recording.stream
    is_saved = node.value.tensor is not None or (stream is not None and stream.has(node.value))
    returned = any(value_of(read) is node.value for _, read in history.recording.outputs)
    return is_saved or id(node.value) in request.swaps or returned
