"""Checks that the metadata of a history are consistent with each other and with the model."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.functions import has_in_place_name
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_tensors
from pytest_torchlens.capture.process_limits import COLLECTOR
from pytest_torchlens.capture.values import base_of
from pytest_torchlens.capture.values import shape_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.operation_records import label_of
from pytest_torchlens.history.operation_records import type_of
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.validate.record_invariants import RecordCheck
from pytest_torchlens.validate.score import Score

Finding = tuple[Node | int, str]
"""A node, or the number of a call, and what is wrong with it."""


def check_invariants(history: ModelHistory, *, restored: bool = True) -> PartVerdict:
    """Return the verdict on labels, numbers, edges, shapes and modules of a history.

    If the model is not `restored` to its state before the pass, it may hold other tensors than those that were read.
    """
    score = Score("invariants", "facts")
    with COLLECTOR.raised():  # many small objects are made, and no cycles
        _check_nodes(history, restored, score)
        _check_records(history, restored, score)
    return score.verdict()


def _check_nodes(history: ModelHistory, restored: bool, score: Score) -> None:
    for check in _CHECKS if restored else [check for check in _CHECKS if check is not _sources]:
        score.checked += len(history.nodes)
        for place, message in check(history):
            label, number = (history.label(place), place) if isinstance(place, int) else (place.label, place.number)
            score.fail(_failure(history, "history", label, number, message))


def _check_records(history: ModelHistory, restored: bool, score: Score) -> None:
    """Compare the records that users get with the recording, by `RecordCheck`."""
    check = RecordCheck(history, restored)
    numbers = {node.label: node.number for node in history.nodes if node.number >= 0}
    for label, message in check.findings():
        score.fail(_failure(history, "record", label, numbers.get(label, -1), message))
    score.checked += check.compared


def _failure(history: ModelHistory, changed: str, label: str, number: int, message: str) -> Failure:
    is_call = 0 <= number < len(history.recording.calls)
    return Failure(
        operation=label,
        message=message,
        cause=f"the {changed} was changed after it was made, or this is a fault of pytest-torchlens",
        advice="make the history again; if it stays, please report the model",
        source_place=history.source_place(number) if is_call else None,
    )


def _labels(history: ModelHistory) -> Iterator[Finding]:
    """Labels contain type and numbers; the numbers increase by layer in execution order."""
    of_type: Counter[str] = Counter()
    total = 0
    for node in history.nodes:
        first = node.passes[0]
        if first is not node:
            expected = (type_of(first), first.layer_type_num, first.layer_total_num)
        else:
            of_type[type_of(node)] += 1
            numbered = node.kind not in ("buffer", "constant")
            expected = (type_of(node), of_type[type_of(node)], total if numbered else -1)
            total += numbered
        if (node.layer_type, node.layer_type_num, node.layer_total_num) != expected:
            yield node, f"its type and numbers should be {expected}"
        elif node.layer_label != label_of(node):
            yield node, f"its label should be {label_of(node)!r}"
        elif node.label != (node.label_w_pass if len(node.passes) > 1 else node.layer_label):
            yield node, f"its own label is neither that of its layer, {node.layer_label!r}, nor that with its pass"


def _passes(history: ModelHistory) -> Iterator[Finding]:
    """The passes of a layer run the same function, are numbered from 1, and share one list of passes."""
    place = {id(node): index for index, node in enumerate(history.nodes)}
    for node in history.nodes:
        places = [place.get(id(other), -1) for other in node.passes] if node.pass_num == 1 else []
        if places != sorted(set(places)) or -1 in places:
            yield node, "the passes of its layer are not in execution order, or no operations of the history"
        elif not 0 < node.pass_num <= len(node.passes) or node.passes[node.pass_num - 1] is not node:
            yield node, f"it is not pass {node.pass_num} of its layer"
        elif type_of(node) != type_of(node.passes[0]) or node.passes is not node.passes[0].passes:
            yield node, f"it is no pass of the layer {node.passes[0].layer_label}"


def _edges(history: ModelHistory) -> Iterator[Finding]:
    """Each parent lists the child, each child the parent, and parents come first."""
    nodes = history.nodes
    place = {id(node): index for index, node in enumerate(nodes)}
    read = {(id(parent), id(node)) for node in nodes for parent, _, _ in node.parents}
    listed = {(id(node), id(child)) for node in nodes for child in node.children}
    for index, node in enumerate(nodes):
        for parent, argument, _ in node.parents:
            if id(parent) not in place:
                yield node, f"its parent by argument {argument} is no layer of the history"
            elif place[id(parent)] >= index:
                yield node, f"its parent {parent.label} comes after it"
            elif (id(parent), id(node)) not in listed:
                yield node, f"its parent {parent.label} does not list it as a child"
        for child in node.children:
            if (id(node), id(child)) not in read:
                yield node, f"its child {child.label} does not list it as a parent"


def _arguments(history: ModelHistory) -> Iterator[Finding]:
    """The parents and parameters of an operation are exactly the tensor arguments of its call."""
    for node in history.nodes:
        if node.call is None:
            continue
        arguments = edges_in(node.call)
        slots = {source.value.slot for source in node.parameters}  # a parameter that was written to is a parent too
        by_path = {path: base_of(read).slot for path, read in arguments}
        parents = len([parent for parent, _, write in node.parents if not (write or parent.value.slot in slots)])
        known = parents + len(node.parameters)
        if known != len(arguments):
            yield node, f"its call was given {len(arguments)} tensors, but {known} parents and parameters are listed"
        elif slots and not slots <= (slots_read := {base_of(read).slot for _, read in arguments}):
            names = ", ".join(one.name for one in node.parameters if one.value.slot not in slots_read)
            yield node, f"its parameters {names} are not among the tensors that its call was given"
        for parent, path, write in node.parents:
            if not write and by_path.get(path) != parent.value.slot:
                yield node, f"its parent {parent.label} is not what its call was given as argument {path}"


def _calls(history: ModelHistory) -> Iterator[Finding]:
    """Calls are in order, outputs name their call and position, and each overwritten tensor is in ``call.writes``."""
    latest = {source.value.slot: source.value for source in history.recording.sources}
    for number, call in enumerate(history.recording.calls):
        strays = [value for value in call.outputs if value.call != number]
        if strays:  # report only the first call that is missing, doubled or moved
            first = min(number, strays[0].call)
            yield (
                first,
                f"a call that was number {strays[0].call + 1} stands at place {number + 1} in the order of calls",
            )
            return
        for position, value in enumerate(call.outputs):
            if value.position != position:
                yield number, f"its output {position} says that it was output {value.position}"
            elif _has_changed(latest.get(value.slot, value), value) and not _may_have_changed(call, value):
                yield number, "its result is a tensor from before, but it is not said to overwrite it"
            latest[value.slot] = value
    calls = history.recording.calls
    for node in history.nodes:
        if node.kind == "operation" and (node.number >= len(calls) or node.value not in calls[node.number].outputs):
            yield node, "no recorded call made it"


def _has_changed(former: Value, value: Value) -> bool:
    return former.digest != value.digest and former.fingerprint != value.fingerprint  # one may be text


def _may_have_changed(call: Call, value: Value) -> bool:
    """Return whether a result may be a tensor from before with other values."""
    if call.info.writer is None or value.slot in call.writes:
        return True
    others = {read.value.slot for _, read in edges_in(call) if isinstance(read, Aliased)}
    return value.slot in others and not _must_write(call)  # it may return an argument that others wrote to


def _must_write(call: Call) -> bool:
    """Return whether a call overwrites an argument by its name, or by a flag that it was given."""
    writer = call.info.writer
    return has_in_place_name(call.info.name) or (writer is not None and bool(writer(call.args, call.kwargs)))


def _sources(history: ModelHistory) -> Iterator[Finding]:
    """Parameters and buffers are those of the model, under their own addresses."""
    model = history.recording.model()
    if model is None:
        return
    modules = list(named_modules(model))
    named: dict[str, dict[str, torch.Tensor]] = {
        "parameter": dict(named_tensors(modules, "_parameters")),
        "buffer": dict(named_tensors(modules, "_buffers")),
    }
    for source in history.recording.sources:
        current = named.get(source.kind, {}).get(source.name)
        if source.kind in named and current is not None and current is not source.live and not source.written:
            reader = _first_reader(history, source.value.slot)
            yield reader, f"the {source.kind} {source.name!r} that it reads is not the one that the model has there"


def _first_reader(history: ModelHistory, slot: int) -> int:
    calls = enumerate(history.recording.calls)
    return next((number for number, call in calls if any(value_of(read).slot == slot for _, read in edges_in(call))), 0)


def _tensors(history: ModelHistory) -> Iterator[Finding]:
    """A saved activation has the recorded shape and dtype."""
    for node in history.nodes:
        saved = node.value.tensor
        if saved is not None and (shape_of(saved) != node.value.shape or saved.dtype != node.value.dtype):
            yield node, f"its saved activation is {saved.dtype} {list(shape_of(saved))}, the record says otherwise"


def _modules(history: ModelHistory) -> Iterator[Finding]:
    """The module calls around an operation were running when it ran, and it ran in the innermost one."""
    inner: dict[int, list[ModuleCall]] = {}
    for module_call in history.recording.module_calls:
        inner.setdefault(id(module_call.parent), []).append(module_call)
    for number, call in enumerate(history.recording.calls):
        for module in call.module.stack() if call.module is not None else ():
            if not module.first <= number < max(module.last, module.first + 1):
                yield number, f"it is said to run in module {module.label!r}, which had ended or not begun"
        within = _call_at(number, inner.get(id(call.module), [])) if call.module is not None else None
        if within is not None and call.module is not None and not history.recording.threaded:
            yield number, f"it is said to run in module {call.module.label!r}, but ran in {within.label!r} inside"


def _call_at(number: int, siblings: list[ModuleCall]) -> ModuleCall | None:
    """Return the one of several consecutive module calls in which call `number` ran."""
    place = bisect.bisect_right(siblings, number, key=lambda call: call.first) - 1
    return siblings[place] if place >= 0 and number < siblings[place].last else None


_CHECKS: tuple[Callable[[ModelHistory], Iterator[Finding]], ...] = (
    _labels,
    _passes,
    _edges,
    _arguments,
    _calls,
    _sources,
    _tensors,
    _modules,
)
