"""Reads the tensors, gradients and call stacks of a live history from its recording."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.capture.gradients import key_of
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.operation_records import graph_entry
from pytest_torchlens.history.source import StackFrame
from pytest_torchlens.history.source import call_stack
from pytest_torchlens.history.walks import Walks


class LiveData:
    """The recording and the nodes that all operations of a history share."""

    def __init__(self, recording: Recording, nodes: list[Node], options: SaveOptions | None) -> None:
        self.recording = recording
        self._nodes = nodes
        self._options = options or SaveOptions()
        self._unsaved: set[int] = set()

    @functools.cached_property
    def walks(self) -> Walks:
        """The graph."""
        return Walks(map(graph_entry, self._nodes))

    def is_saved(self, node: Node) -> bool:
        """Return whether a node's tensor is saved and available."""
        return self.recording.has_saved(node.value) and id(node) not in self._unsaved

    def activation(self, node: Node) -> torch.Tensor | None:
        """Return a node's saved tensor; a source is kept unchanged, so the saving options are applied to it now."""
        if not self.is_saved(node):
            return None
        value, stream = node.value, self.recording.stream
        if value.tensor is None:
            return stream.read(value) if stream is not None else None
        return self._options.apply(value.tensor) if value.call < 0 else value.tensor

    def gradients(self, node: Node) -> dict[int, torch.Tensor]:
        """Return the gradients of a node that is saved, by the number of the backward pass."""
        gradients = self.recording.gradients
        return {} if gradients is None or id(node) in self._unsaved else gradients.of(node.value)

    def forget_others(self, saved: list[Node]) -> None:
        """Free the tensors and gradients of all nodes except `saved`."""
        saved_ids, values = {id(node) for node in saved}, {id(node.value) for node in saved}
        self._unsaved = {id(node) for node in self._nodes if id(node) not in saved_ids}
        for node in self._nodes:
            if node.kind == "operation" and id(node.value) not in values:
                node.value.tensor = None
        if self.recording.stream is not None:
            self.recording.stream.keep_only(node.value for node in saved)
        if self.recording.gradients is not None:
            self.recording.gradients.keep_only({key_of(node.value) for node in saved})

    def backward_passes(self) -> list[BackwardPass]:
        """Return the backward passes so far, with the layers that each reached."""
        gradients = self.recording.gradients
        keys_by_pass = {} if gradients is None else gradients.values_by_pass()
        return [
            BackwardPass(number, tuple(node.label for node in self._nodes if key_of(node.value) in keys))
            for number, keys in keys_by_pass.items()
        ]


@dataclass(frozen=True)
class BackwardPass:
    """One backward pass.

    Attributes
    ----------
    number
        From 1, in the order in which the passes begin.
    layers
        Labels of the layers that it reached, saved or not, in execution order.
    """

    number: int
    layers: tuple[str, ...]


class LiveFields:
    """Reads the fields of one operation that are looked up only when used."""

    def __init__(self, live: LiveData, node: Node) -> None:
        self._live = live
        self._node = node

    @property
    def walks(self) -> Walks:
        """The graph."""
        return self._live.walks

    def activation(self) -> torch.Tensor | None:
        """Return the saved tensor."""
        return self._live.activation(self._node)

    def gradients(self) -> dict[int, torch.Tensor]:
        """Return the gradients by the number of the backward pass."""
        return self._live.gradients(self._node)

    def stack(self) -> tuple[StackFrame, ...]:
        """Return the code positions from the model's forward down to the call."""
        return call_stack(self._node.call)
