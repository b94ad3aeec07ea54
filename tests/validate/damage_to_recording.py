"""The rest of the catalogue of damage: to sources, values, escapes, module calls, parameters; literal tensors."""

from __future__ import annotations

import dataclasses

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.calls import Group
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history.source import first_model_place
from tests.validate.damage_to_records import KINDS

__all__ = ["KINDS"]


def kind(damage):
    KINDS[damage.__name__.replace("_", " ")] = damage
    return damage


# -- literal tensors in place of recorded values ------------------------------------------------------------------


def literal(place):
    """Put a tensor itself into the arguments, in place of the value at one place."""

    def damage(scene):
        reads = [read for path, read in edges_in(scene.call) if place(path, scene.call)]
        if not reads or isinstance(reads[0], Aliased):
            return None
        read = value_of(reads[0])
        scene.exchange(read, torch.zeros(tuple(read.shape), dtype=read.dtype))
        return "invariants", {scene.label}

    return damage


KINDS["literal tensor as first argument"] = literal(lambda path, call: path == "0")
KINDS["literal tensor as second argument"] = literal(lambda path, call: path == "1")
KINDS["literal tensor by keyword"] = literal(lambda path, call: path in call.kwargs)
KINDS["literal tensor in a list"] = literal(lambda path, call: "." in path)


@kind
def literal_tensor_added(scene):
    scene.call.kwargs = {**scene.call.kwargs, "more": [torch.ones(2)]}
    return "invariants", {scene.label}


# -- sources ------------------------------------------------------------------------------------------------------


def source_damage(change):
    """Change a source that the operation is the first to read."""

    def damage(scene):
        found = [one for name in ("parameter", "buffer", "constant") if (one := scene.source(name)) is not None]
        if not found:
            return None
        change(found[0])
        return "invariants", {scene.label}

    return damage


def _renamed(source):
    source.name = "nowhere.weight"


def _used_later(source):
    source.since += 10**6


def _elsewhere(source):
    source.value.position += 1


def _made_by_a_call(source):
    source.value.call = 0


def _of_no_kind(source):
    source.kind = "other"


KINDS["source used before it is said to be"] = source_damage(_used_later)
KINDS["source at another place"] = source_damage(_elsewhere)
KINDS["source said to be made by a call"] = source_damage(_made_by_a_call)
KINDS["source of no known kind"] = source_damage(_of_no_kind)


@kind
def parameter_under_a_name_that_is_nowhere(scene):
    source = scene.source("parameter")
    if source is None:
        return None
    source.name = "nowhere.weight"
    return "invariants", {scene.label}


@kind
def buffer_under_a_name_that_is_nowhere(scene):
    source = scene.source("buffer")
    if source is None:
        return None
    source.name = "nowhere.mean"
    return "invariants", {scene.label}


@kind
def buffer_said_to_be_a_constant(scene):
    source = scene.source("buffer")
    if source is None or not any(node.source is source for node in scene.history.nodes):
        return None
    source.kind = "constant"
    label = next(node.label for node in scene.history.nodes if node.source is source)
    return "invariants", {label, "constant_1"}


@kind
def source_under_the_number_of_another(scene):
    found = [one for name in ("parameter", "buffer") if (one := scene.source(name)) is not None]
    if not found or found[0] is scene.recording.sources[0]:
        return None
    found[0].value.slot = scene.recording.sources[0].value.slot
    return "invariants", {scene.label}


# -- values -------------------------------------------------------------------------------------------------------


@kind
def output_at_another_place(scene):
    scene.call.outputs[0].position += 1
    return "invariants", {scene.label}


@kind
def output_said_to_be_made_by_another_call(scene):
    scene.call.outputs[0].call += 1
    return "invariants", {scene.label}


@kind
def output_under_the_number_of_another_tensor(scene):
    value, others = scene.call.outputs[0], scene.earlier()
    known = [
        other.slot for other in others if other.slot != value.slot and other.slot not in {r.slot for r in scene.reads()}
    ]
    if not known or scene.call.writes:
        return None
    value.slot = known[0]
    return "invariants", {scene.label}


@kind
def strides_wrong(scene):
    value = scene.call.outputs[0]
    if value.stride is None or not value.shape or not scene.nodes:
        return None
    _ = scene.history.operations  # the record is of the right strides
    value.contiguous, value._stride = False, tuple(step + 1 for step in value.stride)
    return "invariants", {scene.label}


@kind
def name_of_the_gradient_function_wrong(scene):
    if not scene.nodes or not scene.call.outputs[0].requires_grad:
        return None
    _ = scene.history.operations
    scene.call.outputs[0].gradfunc = "LieBackward0"
    return "invariants", {scene.label}


@kind
def name_of_the_function_around_wrong(scene):
    if not scene.nodes:
        return None
    _ = scene.history.operations
    scene.call.group = Group("lie", scene.call.group)
    return "invariants", {scene.label}


@kind
def call_that_took_longer_than_the_pass(scene):
    scene.call.elapsed = int(2e9 * scene.recording.elapsed) + 1
    return "invariants", {scene.label}


@kind
def call_that_took_less_than_no_time(scene):
    scene.call.elapsed = -1
    return "invariants", {scene.label}


@kind
def frames_of_another_call(scene):
    own = first_model_place(scene.call.frames)
    others = [call for call in scene.recording.calls if first_model_place(call.frames) not in (None, own)]
    if not others or own is None or not scene.nodes:
        return None
    _ = scene.history.operations
    scene.call.frames = others[0].frames
    return "invariants", {scene.label}


@kind
def value_that_no_call_made(scene):
    reads = [read for read in scene.reads() if read.call >= 0]
    if not reads:
        return None
    stranger = Value(10**6, scene.number + 10**6, 0, torch.zeros(tuple(reads[0].shape)))
    scene.exchange(reads[0], stranger)
    return "invariants", {scene.label}


# -- escapes ------------------------------------------------------------------------------------------------------


def escape_damage(change):
    """Change the n-th value handed to Python, in the place of the n-th operation."""

    def damage(scene):
        escapes = scene.recording.escapes
        if scene.number >= len(escapes):
            return None
        escape, record = escapes[scene.number], scene.history.escapes[scene.number]
        wrong = change(scene, escape)
        if wrong is None:
            return None
        _ = scene.history.record()
        escapes[scene.number : scene.number + 1] = wrong
        return "invariants", {record.operation or escape.name, scene.history.model_name, ""}

    return damage


KINDS["escape left out"] = escape_damage(lambda scene, escape: [])
KINDS["escape duplicated"] = escape_damage(lambda scene, escape: [escape, escape])
KINDS["escape by another function"] = escape_damage(lambda scene, escape: [dataclasses.replace(escape, name="tolist")])
KINDS["escape before its value was made"] = escape_damage(
    lambda scene, escape: [dataclasses.replace(escape, call=0)] if escape.value and escape.value.call >= 0 else None
)
KINDS["escape after the end"] = escape_damage(
    lambda scene, escape: [dataclasses.replace(escape, call=len(scene.recording.calls) + 1)]
)
KINDS["escape of another answer"] = escape_damage(
    lambda scene, escape: [dataclasses.replace(escape, result=not escape.result)] if escape.result is not None else None
)


@kind
def escape_of_another_answer_before_the_history_was_made(scene):
    """What Python was given is wrong in the recording and the record alike: the fingerprint tells."""
    escapes = scene.recording.escapes
    if scene.number >= len(escapes) or escapes[scene.number].result is None:
        return None
    escape = escapes[scene.number]
    label = scene.history.escapes[scene.number].operation
    wrong = not escape.result if isinstance(escape.result, bool) else escape.result + 1
    escapes[scene.number] = dataclasses.replace(escape, result=wrong)
    records = list(scene.history.escapes)
    records[scene.number] = dataclasses.replace(records[scene.number], value=wrong)
    scene.history._escapes = tuple(records)
    return "invariants", {label}


@kind
def escape_of_another_operation(scene):
    escapes = scene.recording.escapes
    if scene.number >= len(escapes) or scene.history.nodes[0].value is escapes[scene.number].value:
        return None
    label = scene.history.escapes[scene.number].operation
    escapes[scene.number] = dataclasses.replace(escapes[scene.number], value=scene.history.nodes[0].value)
    return "invariants", {label, scene.history.nodes[0].label}


# -- modules and parameters ---------------------------------------------------------------------------------------


def module_call_damage(change):
    """Change the n-th module call, in the place of the n-th operation."""

    def damage(scene):
        calls = scene.recording.module_calls
        if not 0 < scene.number < len(calls):
            return None
        call = calls[scene.number]
        inside = {scene.history.label(number) for number in range(call.first, call.last)}
        if change(scene, call) is False:
            return None
        return "invariants", {f"module {call.label}", f"module {call.address}", *inside, scene.history.model_name}

    return damage


def _numbered(scene, call):
    call.number += 1


def _never_ended(scene, call):
    call.last = len(scene.recording.calls) + 5


def _began_after_its_end(scene, call):
    call.first = call.last + 1


def _of_another_class(scene, call):
    call.module_type += "x"


def _around_itself_later(scene, call):
    if call in scene.recording.module_calls[-1].stack():  # it would be around itself, for ever
        return False
    call.parent = scene.recording.module_calls[-1]
    return None


def _given_what_is_made_later(scene, call):
    later = scene.recording.calls[-1].outputs[0]
    if call.first > later.call:
        return False
    call.inputs = (*call.inputs, later)
    return None


def _gave_what_is_made_later(scene, call):
    later = scene.recording.calls[-1].outputs[0]
    if call.last > later.call:
        return False
    call.outputs = (*call.outputs, later)
    return None


KINDS["module call of another number"] = module_call_damage(_numbered)
KINDS["module call that never ended"] = module_call_damage(_never_ended)
KINDS["module call that began after its end"] = module_call_damage(_began_after_its_end)
KINDS["module call of another class"] = module_call_damage(_of_another_class)
KINDS["module call inside a later one"] = module_call_damage(_around_itself_later)
KINDS["module call given a later value"] = module_call_damage(_given_what_is_made_later)
KINDS["module call that gave a later value"] = module_call_damage(_gave_what_is_made_later)


@kind
def module_call_left_out(scene):
    calls = scene.recording.module_calls
    if not 0 < scene.number < len(calls):
        return None
    _ = scene.history.record()
    call = calls.pop(scene.number)
    inside = {scene.history.label(number) for number in range(call.first, call.last)}
    after = {f"module {later.label}" for later in calls if later.address == call.address or later.parent is call}
    around = {f"module {call.parent.address or scene.history.model_name}"} if call.parent is not None else set()
    return "invariants", {f"module {call.address}", scene.history.model_name, *around, *inside, *after}


def whole(change):
    """Change something of the recording that is of no one operation."""

    def damage(scene):
        if scene.number or change(scene.recording) is False:
            return None
        return "invariants", {scene.history.model_name, *later_names(scene)}

    return damage


def later_names(scene):
    return {f"module {address or scene.history.model_name}" for address in scene.recording.modules}


def _first_parameter(recording):
    return next(iter(recording.parameters), None)


def _of_another_shape(recording):
    if (name := _first_parameter(recording)) is None:
        return False
    recording.parameters[name] = torch.Size([*recording.parameters[name], 2])
    return None


def _frozen(recording):
    if not recording.trainable:
        return False
    recording.trainable.pop()
    return None


def _larger(recording):
    recording.parameter_bytes += 4


def _another_model(recording):
    recording.model_name += "x"


def _another_module(recording):
    if len(recording.modules) == 1:
        return False
    recording.modules[list(recording.modules)[-1]] = "Lie"
    return None


KINDS["parameter of another shape"] = whole(_of_another_shape)
KINDS["parameter said to be frozen"] = whole(_frozen)
KINDS["parameters of another size"] = whole(_larger)
KINDS["model of another class"] = whole(_another_model)
KINDS["module of another class"] = whole(_another_module)
