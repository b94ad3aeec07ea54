"""Compares what a history answers when asked with what its operations are: lookups, lists, layers, arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.gradients import key_of
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import UnpackedObject
from pytest_torchlens.capture.values import base_of
from pytest_torchlens.history import LoggedOperation
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.layers_and_operations import Layer
from pytest_torchlens.records import RolledEdge
from pytest_torchlens.validate.expected_graph import ExpectedGraph
from pytest_torchlens.validate.expected_graph import ExpectedOperation
from pytest_torchlens.validate.expected_totals import history_labels

Finding = tuple[str, str]
"""The label of an operation, and what is wrong with it."""


def view_faults(history: ModelHistory, graph: ExpectedGraph) -> Iterator[Finding]:
    """Yield what a history answers wrongly."""
    given = history.operations
    for one, record in zip(graph.operations, given, strict=True):
        yield from ((one.label, problem) for problem in _operation_faults(history, one, record, len(given)))
    for name, labels in history_labels(list(given)).items():
        if getattr(history, name) != labels:
            yield history.model_name, f"{name} is {getattr(history, name)!r:.100}, its operations give {labels!r:.100}"
    numbered = sum(one.is_numbered for one in graph.operations)
    if len(history) != numbered:
        yield history.model_name, f"its length is {len(history)}, it has {numbered} inputs, operations and outputs"
    yield from _gradient_faults(history, graph)


def _operation_faults(history: ModelHistory, one: ExpectedOperation, record: LoggedOperation, _: int) -> Iterator[str]:
    if one.label not in history or found_by(history, one.label) is not record:
        yield "its label finds another operation, or none"
    call = one.call
    if record.func_applied is not (call.info.func if call is not None else None):
        yield f"func_applied is {record.func_applied!r:.100}, the recorded call ran {call and call.info.name}"
    state = call.random.state if call is not None and call.random is not None else None
    if record.func_rng_states is not state:
        yield "func_rng_states is not the state that was recorded before the call"
    yield from _argument_faults(one, record)
    saved = record.has_saved_activations
    if saved and one.value.tensor is None and history.recording.stream is None:
        yield "has_saved_activations is True, and there is no tensor"


def _argument_faults(one: ExpectedOperation, record: LoggedOperation) -> Iterator[str]:
    names = {id(parent.value): parent.label for parent, _, write in one.parents if not write}
    if one.parameters:
        names |= {id(source.value): source.name for source in one.parameters}
    args, kwargs = (one.call.args, one.call.kwargs) if one.call is not None else ((), {})
    if not _is_named(args, record.creation_args, names):
        yield f"creation_args is {record.creation_args!r:.100}, the recorded call had others"
    if not _is_named(kwargs, record.creation_kwargs, names):
        yield f"creation_kwargs is {record.creation_kwargs!r:.100}, the recorded call had others"


def found_by(history: ModelHistory, label: str) -> LoggedOperation | Layer | None:
    """Return what a label finds; None if it finds nothing."""
    try:
        return history[label]
    except LookupError:
        return None


def _is_named(template: Any, given: Any, names: dict[int, str]) -> bool:
    """Return whether arguments are those of a template, with a name in place of each tensor."""
    kind = type(template)
    if kind is Value or kind is Aliased:
        return bool(given == names.get(id(base_of(template)), "?"))
    if kind in ATOMS:
        return given is template
    if kind is UnpackedObject:
        return type(given) is type(template.original)
    if kind is list or kind is tuple:
        return len(template) == len(given) and all(map(_is_named, template, given, repeat(names)))
    if kind is dict:
        return list(template) == list(given) and all(_is_named(template[name], given[name], names) for name in template)
    if kind is slice or isinstance(template, list | tuple | dict):
        return True
    return given is template


def _gradient_faults(history: ModelHistory, graph: ExpectedGraph) -> Iterator[Finding]:
    """Yield backward passes that name other operations than were reached."""
    gradients = history.recording.gradients
    reached = {} if gradients is None else gradients.values_by_pass()
    expected = [
        (number, tuple([one.label for one in graph.operations if key_of(one.value) in keys]))
        for number, keys in reached.items()
    ]
    given = [(backward.number, backward.layers) for backward in history.backward_passes]
    if given != expected:
        yield history.model_name, f"backward_passes is {given!r:.100}, the recording gives {expected!r:.100}"
    for one, record in zip(graph.operations, history.operations if reached else (), strict=False):
        if gradients is not None and not set(record.gradients) <= {
            number for number, keys in reached.items() if key_of(one.value) in keys
        }:
            yield one.label, f"gradients has the passes {list(record.gradients)!r:.100}, others reached it"


# -- layers of several passes -----------------------------------------------------------------------------------------

_FEW_LAYERS = 30


def layer_faults(history: ModelHistory, graph: ExpectedGraph) -> Iterator[Finding]:
    """Yield wrong answers of layers with several passes; check the edges of the first layers only."""
    edges = _rolled(graph.operations)
    if (given := history.rolled_edges) != edges:
        differing = next((one for one, other in zip(given, edges, strict=False) if one != other), None)
        child = differing.child if differing is not None else history.model_name
        yield child, f"rolled_edges has {differing!r:.200} or a wrong number of edges, its operations have others"
    layers = {one.layer_label: one.passes for one in graph.operations if len(one.passes) > 1}
    for number, (label, passes) in enumerate(layers.items()):
        if label not in history or not isinstance(layer := history[label], Layer):
            yield label, "its label finds no layer of several passes"
            continue
        if [record.label for record in layer.passes] != [one.label for one in passes]:
            yield label, f"passes is {layer.passes!r:.100}, its operations are {[one.label for one in passes]}"
        if layer.layer_label != label:
            yield label, f"layer_label is {layer.layer_label!r}"
        if number < _FEW_LAYERS:
            yield from ((label, problem) for problem in _edge_faults(layer, label, edges))


def _edge_faults(layer: Layer, label: str, edges: tuple[RolledEdge, ...]) -> Iterator[str]:
    into = tuple([edge for edge in edges if edge.child == label])
    out = tuple([edge for edge in edges if edge.parent == label])
    expected: dict[str, Any] = {
        "parent_edges": into,
        "child_edges": out,
        "parent_layers": tuple(dict.fromkeys([edge.parent for edge in into])),
        "child_layers": tuple(dict.fromkeys([edge.child for edge in out])),
    }
    for name, value in expected.items():
        given = getattr(type(layer), name).fget(layer)
        if given != value:
            yield f"{name} is {given!r:.100}, its operations give {value!r:.100}"


def _rolled(operations: list[ExpectedOperation]) -> tuple[RolledEdge, ...]:
    passes: dict[tuple[str, str, str, bool], list[tuple[int, int]]] = defaultdict(list)
    totals: dict[str, int] = {}
    for one in operations:
        totals[one.layer_label] = len(one.passes)
        for parent, path, write in one.parents:
            passes[parent.layer_label, one.layer_label, path, write].append((parent.pass_num, one.pass_num))
    return tuple(
        [
            RolledEdge(
                *key,
                tuple(pairs),
                _some_passes("Out", {sent for sent, _ in pairs}, totals[key[0]]),
                _some_passes("In", {got for _, got in pairs}, totals[key[1]]),
            )
            for key, pairs in passes.items()
        ]
    )


def _some_passes(word: str, passes: set[int], total: int) -> str:
    """Return passes as text, neighbours as a range; ``""`` for all."""
    if len(passes) == total:
        return ""
    begins = sorted(number for number in passes if number - 1 not in passes)
    ends = sorted(number for number in passes if number + 1 not in passes)
    runs = [str(first) if first == last else f"{first}-{last}" for first, last in zip(begins, ends, strict=True)]
    return f"{word} {', '.join(runs)}"
