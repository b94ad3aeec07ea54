"""More of the catalogue of damage: to arguments, state, order, names, modules and outputs."""

from __future__ import annotations

import dataclasses

import torch

from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.values import value_of
from tests.validate.damage import KINDS
from tests.validate.damage import kind
from tests.validate.damage import later_labels

__all__ = ["KINDS"]

# -- arguments and state ------------------------------------------------------------------------------------------


@kind
def positional_number_changed(scene):
    for place, arg in enumerate(scene.call.args):
        if type(arg) in (int, float):
            scene.call.args = (*scene.call.args[:place], arg + 1, *scene.call.args[place + 1 :])
            return "replay", {scene.label}
    return None


@kind
def keyword_changed(scene):
    for name, arg in scene.call.kwargs.items():
        if type(arg) in (int, float):
            scene.call.kwargs = {**scene.call.kwargs, name: arg + 1}
            return "replay", {scene.label}
    return None


@kind
def truth_value_turned_round(scene):
    for place, arg in enumerate(scene.call.args):
        if type(arg) is bool:
            scene.call.args = (*scene.call.args[:place], not arg, *scene.call.args[place + 1 :])
            return "replay", {scene.label}
    return None


@kind
def function_exchanged(scene):
    if len(scene.reads()) == 1 and len(scene.call.args) == 1:
        scene.call.info = info_of(torch.cos)
        return "replay", {scene.label}
    if len(scene.reads()) == 2 and len(scene.call.args) == 2:
        scene.call.info = info_of(torch.atan2)
        return "replay", {scene.label}
    return None


def stale(name):
    def damage(scene):
        source = scene.source(name)
        if source is None or not source.live.is_floating_point():
            return None
        with torch.no_grad():
            source.live.view(-1)[0] += 1
        return "replay", {scene.label}

    return damage


for name in ("parameter", "buffer", "input", "constant"):
    KINDS[f"{name} stale"] = stale(name)


@kind
def parameter_under_the_address_of_another(scene):
    source = scene.source("parameter")
    others = [s for s in scene.recording.sources if s.kind == "parameter" and s is not source]
    if source is None or not others:
        return None
    source.name = others[0].name
    return "invariants", {scene.label}


@kind
def random_state_lost(scene):
    if scene.call.random is None:
        return None
    scene.call.random = None
    return "replay", {scene.label}


@kind
def random_state_of_another_draw(scene):
    if scene.call.random is None:
        return None
    other = torch.Generator().manual_seed(99).get_state()
    scene.call.random = dataclasses.replace(scene.call.random, state=other)
    return "replay", {scene.label}


@kind
def autocast_made_up(scene):
    if not scene.call.info.depends_on_settings:
        return None
    grad, inference, _, *rest = scene.recording.ambient.rows[scene.call.ambient]
    scene.recording.ambient.rows.append((grad, inference, (("cpu", torch.bfloat16, True),), *rest))
    scene.call.ambient = len(scene.recording.ambient.rows) - 1
    return "replay", {scene.label}


@kind
def final_state_wrong(scene):
    for source in scene.recording.sources:
        if source.written and source.value.slot in {value.slot for value in scene.reads()}:
            source.final = "0" * 16
            return "replay", later_labels(scene)
    return None


# -- order, names, modules, outputs -------------------------------------------------------------------------------


@kind
def operation_left_out(scene):
    del scene.recording.calls[scene.number]
    return "invariants", {scene.label}


@kind
def operation_duplicated(scene):
    scene.recording.calls.insert(scene.number, scene.call)
    return "invariants", {scene.label}


@kind
def operation_exchanged_with_the_next(scene):
    calls = scene.recording.calls
    if scene.number + 1 == len(calls):
        return None
    calls[scene.number], calls[scene.number + 1] = calls[scene.number + 1], calls[scene.number]
    return "invariants", {scene.label}


@kind
def module_of_an_operation_changed(scene):
    for module in scene.recording.module_calls:
        if module is not scene.call.module:
            scene.call.module = module
            return "invariants", {scene.label}
    return None


@kind
def pass_numbers_swapped(scene):
    for node in scene.nodes:
        for other in node.passes:
            if other is not node:
                node.pass_num, other.pass_num = other.pass_num, node.pass_num
                return "invariants", {node.label, other.label, scene.label}
    return None


@kind
def label_changed(scene):
    if not scene.nodes:
        return None
    scene.nodes[0].layer_label = "other_1_1"
    return "invariants", {"other_1_1", scene.nodes[0].label, scene.label}


@kind
def place_in_the_order_of_layers_changed(scene):
    if not scene.nodes:
        return None
    scene.nodes[0].layer_total_num += 1
    return "invariants", {scene.label}


@kind
def type_of_layer_changed(scene):
    if not scene.nodes:
        return None
    scene.nodes[0].layer_type += "x"
    return "invariants", {scene.label}


@kind
def output_mapped_to_another_operation(scene):
    path, read = scene.recording.outputs[0]
    value = scene.call.outputs[0]
    if value_of(read) is value or value.fingerprint == value_of(read).fingerprint:
        return None
    scene.recording.outputs[0] = (path, value)
    return "replay", {scene.label}


@kind
def output_left_out(scene):
    values = [value_of(read) for _, read in scene.recording.outputs]
    if scene.call.outputs[0] not in values:
        return None
    del scene.recording.outputs[values.index(scene.call.outputs[0])]
    return "replay", {""}
