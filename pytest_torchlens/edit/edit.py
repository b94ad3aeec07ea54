"""Edits a recorded pass: changes activations, and computes what is behind them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_torchlens.capture.values import value_of
from pytest_torchlens.edit.expand import expanded
from pytest_torchlens.edit.live import live_recording
from pytest_torchlens.edit.places import Place
from pytest_torchlens.edit.recording import EditedRecording
from pytest_torchlens.edit.request import Request
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import Node
from pytest_torchlens.replay import Subgraph


@dataclass(frozen=True)
class AppliedEdit:
    """One edit and where it was made.

    Attributes
    ----------
    label
        Label of the activation, or name of the parameter.
    place
        The same with the part of the tensor and the only operation that sees the change, if there are.
    change
        What was put there, in words.
    """

    label: str
    place: str
    change: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.place} ← {self.change}"


def edit(
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
    recording = live_recording(history, request) if live else _replayed(history, request, check_decisions)
    edited = ModelHistory(recording, history.options)
    edited.arguments, edited.expansions = history.arguments, history.expansions
    edited.edits = (*history.edits, *(applied(place, change) for place, change in request.changes))
    return edited


def applied(place: Place, change: Any) -> AppliedEdit:
    """Return an edit in words."""
    return AppliedEdit(place.label, place.text, _in_words(change))


def _in_words(change: Any) -> str:
    if isinstance(change, torch.Tensor):
        return f"a tensor of shape {list(change.shape)}"
    if callable(change):
        return f"{getattr(change, '__name__', None) or type(change).__name__}(…)"
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
    results = part.run_with(request.swaps, check_decisions, edges=request.edges, feeds=not request.of_gradients)
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
