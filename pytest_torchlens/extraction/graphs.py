"""Finds the chosen layers in the pass of each batch, and keeps these activations alone.

The first pass shows the graph.  Every later pass is compared with the known graphs call by call while it runs: as long
as it makes the calls of one, only the chosen outputs are kept.  From the first other call on, all are kept, up to
256 MiB, until the pass is over and the layers can be looked up in the new graph.  If one of these was not kept, the
batch runs again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import values_read
from pytest_torchlens.capture.fingerprint import digest_and_key
from pytest_torchlens.capture.memory import Retention
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import CPU
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.extraction.index import ExtractError
from pytest_torchlens.history import LayersToSave
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import unlink
from pytest_torchlens.history.history_options import TraceOptions
from pytest_torchlens.history.rerun import ran_in_both
from pytest_torchlens.records import Operation
from pytest_torchlens.records import align
from pytest_torchlens.records import close
from pytest_torchlens.records import nearest

Place = tuple[int, int]
"""Number of the call and position among its outputs; for a source -1 and its position among the sources."""


@dataclass(frozen=True)
class Graph:
    """What one pass did, and where the chosen layers are in it.

    Attributes
    ----------
    calls, outputs
        The signature of each call, and of the model's output.
    chosen
        Place of each layer, by its label in the first graph.
    labels
        Label of each call, by its number.
    """

    calls: list[Hashable]
    outputs: Hashable
    chosen: dict[str, Place]
    labels: dict[int, str]


class ChosenOutputs(Retention):
    """Keeps the chosen outputs of the known graphs; all outputs as soon as a pass leaves these.

    Parameters
    ----------
    recording
        The recording.
    graphs
        The known graphs.
    """

    def __init__(self, recording: Recording, graphs: list[Graph]) -> None:
        super().__init__()
        self._recording = recording
        self._candidates = [(graph, frozenset(graph.chosen.values())) for graph in graphs]
        self._followed = 0
        self._held = 0

    @staticmethod
    def digest_and_key(tensor: torch.Tensor, value: Value) -> tuple[int | str, int]:
        """Return no fingerprint of a tensor on a GPU: all of it would be copied from there."""
        return digest_and_key(tensor, value) if value.device is CPU else ("", storage_key(tensor))

    def keep_output(self, value: Value, tensor: torch.Tensor, key: int) -> None:
        """Keep an output of a call, if it is chosen, or may be."""
        self._follow(value.call)
        if self._candidates:
            if any((value.call, value.position) in chosen for _, chosen in self._candidates):
                self.keep(value, tensor, key)
        elif self._held + value.nbytes <= _MOST_HELD:
            self._held += value.nbytes
            self.keep(value, tensor, key)

    def _follow(self, number: int) -> None:
        """Drop the graphs that make another call than this pass, up to call `number`."""
        while self._candidates and self._followed <= number:
            at, signature = self._followed, _signature(self._recording, self._recording.calls[self._followed])
            self._candidates = [
                one for one in self._candidates if at < len(one[0].calls) and one[0].calls[at] == signature
            ]
            self._followed += 1

    def followed_graph(self) -> Graph | None:
        """Return the known graph that the whole pass followed; None if it is another one."""
        calls, outputs = len(self._recording.calls), _outputs(self._recording)
        self._follow(calls - 1)
        graphs = (graph for graph, _ in self._candidates)
        return next((graph for graph in graphs if len(graph.calls) == calls and graph.outputs == outputs), None)

    def read(self, place: Place) -> torch.Tensor | None:
        """Return the tensor at a place; None if it was not kept."""
        call, position = place
        recording = self._recording
        value = recording.sources[position].value if call < 0 else recording.calls[call].outputs[position]
        return value.tensor


_MOST_HELD = 256 << 20
"""Bytes of the outputs that are kept of an unknown graph."""


def _signature(recording: Recording, call: Call) -> Hashable:
    read = tuple([(path, _origin(recording, value)) for path, value in values_read(call)])
    return call.info.name, call.module.label if call.module else "", read


def _origin(recording: Recording, value: Value) -> Hashable:
    """Return what a value is in any pass over the same graph."""
    if value.call >= 0:
        return value.call, value.position
    source = recording.sources[value.position]
    return source.kind, "" if source.kind == "constant" else source.name  # a constant has its name after the pass


def _outputs(recording: Recording) -> Hashable:
    return tuple([(path, _origin(recording, value_of(value))) for path, value in recording.outputs])


class Graphs:
    """The graphs of all passes so far; the first one names the layers.

    Parameters
    ----------
    layers
        What the user asked for, as in `log_forward_pass`, or patterns of names.
    """

    def __init__(self, layers: LayersToSave) -> None:
        self._layers = _with_patterns(layers)
        with _naming_layers():
            self._options = TraceOptions(self._layers)
        self._first: list[Operation] = []
        self.known: list[Graph] = []
        self.operations: dict[str, Operation] = {}
        """The chosen operations of the first graph, by label."""
        self.random: dict[str, None] = {}
        """Labels of the operations that drew random numbers in any pass, each as in its own graph."""

    def add(self, recording: Recording, where: str) -> Graph:
        """Add the graph of a pass, and return it.

        Raises
        ------
        LookupKeyError
            If a key does not match a layer of the first graph.
        ExtractError
            If a layer of the first graph is missing in this one; `where` names the batch.
        """
        history = ModelHistory(recording, TraceOptions("all") if self.known else self._options)
        places = {node.label: (node.value.call, node.value.position) for node in history.nodes}
        labels = self._aligned(history, where) if self.known else self._resolved(history)
        chosen = {label: places[here] for label, here in labels.items()}
        calls = [_signature(recording, call) for call in recording.calls]
        graph = Graph(calls, _outputs(recording), chosen, {call: label for label, (call, _) in places.items()})
        self.known = [*self.known[-_MOST_KNOWN:], graph]
        unlink(history.nodes)
        return graph

    def note_random(self, recording: Recording, graph: Graph) -> None:
        """Note the operations that drew random numbers in a pass over a graph."""
        drew = (number for number, call in enumerate(recording.calls) if call.random is not None)
        self.random |= {graph.labels.get(number, recording.calls[number].info.name): None for number in drew}

    def _resolved(self, history: ModelHistory) -> dict[str, str]:
        with _naming_layers(history):
            labels = history.layer_labels
        self._first = [op.plain() for op in history.operations]
        chosen = set(labels)
        self.operations = {op.label: op for op in self._first if op.label in chosen}
        return {label: label for label in labels}

    def _aligned(self, history: ModelHistory, where: str) -> dict[str, str]:
        """Return the label in another graph of each chosen layer."""
        pairs = {pair.first.label: pair for pair in align(self._first, history.operations).pairs if pair.first}
        labels = {}
        for label, first in self.operations.items():
            pair = pairs[label]
            here = pair.second if ran_in_both(pair, history.recording.modules) else None
            if here is None:
                raise ExtractError(
                    f"{where} runs other operations than batch 1, and {_described(first)} is not among them: "
                    "choose layers that every batch runs"
                )
            if here.layer_passes_total != first.layer_passes_total:
                raise ExtractError(
                    f"{where} runs {first.layer_label} {_times(here)}, batch 1 {_times(first)}: "
                    "choose layers that run equally often in every batch"
                )
            labels[label] = here.label
        return labels


_MOST_KNOWN = 7


def _described(op: Operation) -> str:
    module = f" (of {op.modules_exited[-1]})" if op.modules_exited else ""
    return f"{op.label}{module}"


def _times(op: Operation) -> str:
    return "once" if op.layer_passes_total == 1 else f"{op.layer_passes_total} times"


def _with_patterns(layers: Any) -> Any:
    """Return `layers` with a function in place of each pattern; raise `LookupKeyError` if it selects nothing."""
    is_list = isinstance(layers, list | tuple)
    items = list(layers) if is_list else [layers]
    if layers is None or not items or "none" in [item for item in items if isinstance(item, str)]:
        raise LookupKeyError("layers: expected the layers to extract, as ['layer3', 'fc'], or 'all', got none")
    found = [Pattern(item) if is_pattern(item) else item for item in items]
    return found if is_list else found[0]


@contextlib.contextmanager
def _naming_layers(history: ModelHistory | None = None) -> Iterator[None]:
    """Let a `LookupKeyError` name the option `layers`; add the names most like a pattern that no layer matches."""
    try:
        yield
    except LookupKeyError as error:
        message = str(error).replace("layers_to_save", "layers")
        _, found, pattern = message.partition("no layer passes ")
        pattern = pattern.strip("'")
        if history is not None and found and is_pattern(pattern):
            names = [name for op in ModelHistory(history.recording).operations for name in names_of(op)]
            message = f"layers: no layer matches {pattern!r}; {nearest(re.sub(r'[*?]', '', pattern), set(names))}"
        raise LookupKeyError(message) from None


def is_pattern(key: object) -> bool:
    """Return whether a key is a pattern such as ``"blocks.*.mlp"``."""
    return isinstance(key, str) and any(sign in key for sign in "*?[")


class Pattern:
    """Selects the operations of which a name matches: a label, or the address of a module that returns it.

    A wildcard stays between two dots: ``"layer1.*"`` are the modules in ``layer1``, and not those inside these.
    """

    def __init__(self, pattern: str) -> None:
        self.__name__ = pattern
        self._parts = pattern.split(".")

    def __call__(self, op: Operation) -> bool:
        """Return whether an operation is selected."""
        return any(self._matches(name.split(".")) for name in names_of(op))

    def _matches(self, parts: list[str]) -> bool:
        return len(parts) == len(self._parts) and all(map(fnmatchcase, parts, self._parts))

    def __repr__(self) -> str:
        """Return the pattern."""
        return repr(self.__name__)


def names_of(op: Operation) -> list[str]:
    """Return its labels, with and without the pass, and the addresses and calls of the modules that return it."""
    labels = [op.layer_label, op.layer_label_short]
    passes = [f"{label}:{op.pass_num}" for label in labels]
    addresses = [_NUMBER.sub("", call) for call in op.modules_exited]
    return list(dict.fromkeys([*labels, *passes, *addresses, *op.modules_exited]))


_NUMBER = re.compile(r":\d+$")
"""The number at the end of a module call."""


def matching(key: str, operations: Iterable[Operation]) -> list[str]:
    """Return the labels of the chosen operations that a key names.

    Raises
    ------
    LookupKeyError
        If it names none; the message has the nearest names.
    """
    operations = list(operations)
    wanted = Pattern(key) if is_pattern(key) else lambda op: key in names_of(op)
    found = [op.label for op in operations if wanted(op)]
    if not found:
        known = [name for op in operations for name in names_of(op)]
        hint = close(key, known) or f"chosen are {', '.join(op.label for op in operations[:4])}"
        raise LookupKeyError(f"{key!r} is none of the chosen layers; {hint}")
    return found
