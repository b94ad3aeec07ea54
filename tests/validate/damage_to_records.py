"""More of the catalogue of damage: each public field of what users read of a history, falsified."""

from __future__ import annotations

import dataclasses

from pytest_torchlens.history import LoggedOperation
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history import model_history
from pytest_torchlens.history.layers_and_operations import Layer
from pytest_torchlens.records import AppliedEdit
from pytest_torchlens.records import Edge
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import LoopRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import RolledEdge
from tests.validate.damage_to_state import KINDS

__all__ = ["KINDS", "fields_of"]

LAYER_FIELDS = ("passes", "edges_of_all", "layer_label", "parent_edges", "child_edges", "parent_layers", "child_layers")
WALKS = (
    *("orig_ancestors", "sibling_layers", "spouse_layers", "output_descendants"),
    *("min_distance_from_input", "max_distance_from_input", "min_distance_from_output", "max_distance_from_output"),
    *("internally_initialized_parents", "internally_initialized_ancestors"),
)
LISTS = (
    *("input_layers", "output_layers", "buffer_layers", "constant_layers", "internally_initialized_layers"),
    *("internally_terminated_bool_layers", "layers_computed_with_params", "layer_list", "backward_passes"),
)
LIVE = ("func_applied", "creation_args", "creation_kwargs", "func_rng_states", "operations_total")


def fields_of(kind):
    """Return the public fields of a class of records."""
    return LAYER_FIELDS if kind is Layer else tuple(field.name for field in dataclasses.fields(kind))


def lie(value):
    """Return another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}_lie"
    if isinstance(value, tuple | list):
        return value[:-1] or type(value)(["lie"])
    return {"lie": 1} if isinstance(value, dict) else "lie"


def falsified(record, name, value=None):
    return dataclasses.replace(record, **{name: lie(getattr(record, name)) if value is None else value})


def named(prefix, names, damage):
    for name in names:
        KINDS[f"{prefix}: {name}"] = lambda scene, name=name: damage(scene, name)


# -- operations -----------------------------------------------------------------------------------------------------


def operation_field(scene, name):
    """Let the history make the record of one operation with one wrong field."""
    make = scene.history._make_operation

    def wrong(node, keys):
        operation = make(node, keys)
        if node is scene.nodes[0]:
            value = getattr(operation, name)
            object.__setattr__(operation, name, falsified_edges(value) if name == "edges" else lie(value))
        return operation

    if not scene.nodes:
        return None
    scene.history._make_operation = wrong
    return "invariants", {scene.label}


def source_field(kind):
    """Let the history make the record of an input, output, buffer or constant with one wrong field."""

    def damage(scene, name):
        place = next((place for place, node in enumerate(scene.history.nodes) if node.kind == kind), None)
        if scene.number or place is None:
            return None
        record = scene.history.operations[place]
        label = record.label
        object.__setattr__(record, name, lie(getattr(record, name)))
        return "invariants", {label}

    return damage


def reported_field(scene, name):
    """Let the report have another field than the operation that is looked up."""
    if not scene.nodes:
        return None
    record = scene.history.operations[scene.history.nodes.index(scene.nodes[0])]
    plain = falsified(record.plain(), name)
    object.__setattr__(record, "plain", lambda: plain)
    return "invariants", {scene.label}


def live_field(scene, name):
    if not scene.nodes:
        return None
    record = scene.history.operations[scene.history.nodes.index(scene.nodes[0])]
    object.__setattr__(record, name, lie(getattr(record, name)))
    return "invariants", {scene.label}


def walk(scene, name):
    if not scene.nodes:
        return None
    right = getattr(LoggedOperation, name).fget
    wrong = property(lambda op: lie(right(op)) if op.label == scene.label else right(op))
    scene.patch(LoggedOperation, name, wrong)
    return "invariants", {scene.label}


def falsified_edges(edges):
    """Return edges without the last; one that is made up where there is none."""
    return edges[:-1] or (Edge("lie", "0"),)


def edge_field(scene, name):
    if not scene.nodes or not scene.nodes[0].parents:
        return None
    record = scene.history.operations[scene.history.nodes.index(scene.nodes[0])]
    object.__setattr__(record, "edges", (falsified(record.edges[0], name), *record.edges[1:]))
    return "invariants", {scene.label}


named("Operation", fields_of(Operation), operation_field)
named("LoggedOperation", LIVE, live_field)
named("LoggedOperation", WALKS, walk)
named("Edge", fields_of(Edge), edge_field)
named("Report", ("tensor_shape", "parent_layers", "child_layers", "source_line", "fingerprint"), reported_field)
named("Input", ("tensor_shape", "is_input_layer", "has_input_ancestor", "operation_num"), source_field("input"))
named("Output", ("tensor_dtype", "is_output_layer", "parent_layers", "layer_total_num"), source_field("output"))
named("Buffer", ("buffer_address", "is_buffer_layer", "fingerprint", "lookup_keys"), source_field("buffer"))
named("Constant", ("constant_origin", "is_constant", "child_layers", "tensor_fsize"), source_field("constant"))


@(lambda damage: KINDS.setdefault("label finds another operation", damage))
def _(scene):
    if len(scene.nodes) != 1 or scene.number == 0:
        return None
    other = scene.history.nodes[0]
    find = scene.history._lookup.find
    scene.history._lookup.find = lambda key: [other] if key == scene.label else find(key)
    return "invariants", {scene.label}


# -- layers, edges between them ---------------------------------------------------------------------------------------


def layer_field(scene, name):
    """Let the layer of an operation answer wrongly."""
    if not scene.nodes or len(scene.nodes[0].passes) == 1 or scene.nodes[0].pass_num > 1:
        return None
    label = scene.nodes[0].layer_label
    if name in ("passes", "edges_of_all"):

        def made(passes, edges):
            if passes[0].layer_label != label:
                return Layer(passes, edges)
            return Layer(passes[:-1], edges) if name == "passes" else Layer(passes, lambda: ())

        scene.patch(model_history, "Layer", made)
    else:
        right = getattr(Layer, name).fget
        wrong = property(lambda layer: lie(right(layer)) if layer.passes[0].layer_label == label else right(layer))
        scene.patch(Layer, name, wrong)
    return "invariants", {label}


def rolled_edge_field(scene, name):
    edges = scene.history.rolled_edges
    label = scene.nodes[0].layer_label if scene.nodes else ""
    place = next((place for place, edge in enumerate(edges) if edge.child == label), None)
    if place is None:
        return None
    wrong = falsified(edges[place], name)
    scene.history.__dict__["rolled_edges"] = (*edges[:place], wrong, *edges[place + 1 :])
    return "invariants", {label, wrong.child}


named("Layer", LAYER_FIELDS, layer_field)
named("RolledEdge", fields_of(RolledEdge), rolled_edge_field)


# -- the history as a whole -------------------------------------------------------------------------------------------


NEVER_MADE = {"edits": (AppliedEdit("relu_1_2", "relu_1_2", "0.0"),), "changed_by": {"relu_1_2": 1.0}}
"""Wrong values of the fields that are empty in a pass without edits."""


def history_field(scene, name):
    if scene.number:
        return None
    history = scene.history
    if name == "operations":
        record = history.record()
        wrong = falsified(record, name)
        history.record = lambda: wrong
        return "invariants", {record.operations[-2].label}
    value = getattr(history.record_without_operations(), name)
    if name in ("escapes", "loops", "modules") and not value:
        return None
    wrong = value[:-1] if isinstance(value, tuple) else lie(value)
    history.__dict__["_record_fields"] = {**history._record_fields, name: NEVER_MADE.get(name, wrong)}
    layers = value[-1].layers if name == "loops" else ()
    return "invariants", {history.recording.model_name, *layers}


def history_list(scene, name):
    if scene.number:
        return None
    right = getattr(ModelHistory, name).fget
    scene.patch(ModelHistory, name, property(lambda history: lie(right(history))))
    return "invariants", {scene.history.recording.model_name}


def module_field(scene, name):
    modules = scene.history.record_without_operations().modules
    if scene.number >= len(modules):
        return None
    wrong = falsified(modules[scene.number], name)
    records = (*modules[: scene.number], wrong, *modules[scene.number + 1 :])
    scene.history.__dict__["_record_fields"] = {**scene.history._record_fields, "modules": records}
    return "invariants", {f"module {modules[scene.number].address or scene.history.model_name}"}


def escape_field(scene, name):
    """Falsify one of the values that were handed to Python, the n-th in the place of the n-th operation."""
    escapes = scene.history.escapes
    if scene.number >= len(escapes):
        return None
    wrong = escapes[scene.number]
    if not getattr(wrong, name) and name in ("condition", "branch", "lines_taken", "lines_not_taken"):
        return None
    lines = (1, 10**6) if name.startswith("lines") else None
    scene.history._escapes = (*escapes[: scene.number], falsified(wrong, name, lines), *escapes[scene.number + 1 :])
    return "invariants", {wrong.operation or wrong.function}


def loop_field(scene, name):
    loops = scene.history.loops
    if scene.number >= len(loops):
        return None
    right = loops[scene.number]
    extra = {"num_passes": right.num_passes + 50, "layers": (*right.layers, "lie"), "decided_by": ("lie",)}.get(name)
    wrong = falsified(right, name, extra)
    scene.history.__dict__["loops"] = (*loops[: scene.number], wrong, *loops[scene.number + 1 :])
    return "invariants", {right.layers[0]}


named("HistoryRecord", fields_of(HistoryRecord), history_field)
named("ModelHistory", LISTS, history_list)
named("ModuleRecord", fields_of(ModuleRecord), module_field)
named("EscapeRecord", fields_of(EscapeRecord), escape_field)
named("LoopRecord", fields_of(LoopRecord), loop_field)
