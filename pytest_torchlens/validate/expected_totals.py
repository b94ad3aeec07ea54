"""Derives the model's side of a history from the recording and the expected graph: totals, modules, names of layers."""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.validate.expected_graph import ExpectedGraph


def expected_totals(
    recording: Recording, graph: ExpectedGraph, saved: set[int], escapes: tuple[EscapeRecord, ...]
) -> dict[str, Any]:
    """Return the fields of a `HistoryRecord` except operations, escapes, loops and modules."""
    operations = graph.operations
    layers = {id(one.passes): one for one in operations if one.is_numbered}
    kept = [one for one in operations if id(one) in saved]
    loops = max((len(one.passes) for one in operations if not one.in_cond_branch), default=1)
    seconds = sum(call.elapsed for call in recording.calls) / 1e9
    sizes = {name: shape.numel() for name, shape in recording.parameters.items()}
    return {
        "model_name": recording.model_name,
        "random_seed_used": recording.seed,
        "model_is_recurrent": loops > 1,
        "model_max_recurrent_loops": loops,
        "model_is_branching": any(len(one.children) > 1 for one in operations),
        "model_has_conditional_branching": any(_is_branching(escape) for escape in escapes),
        "num_operations": len(recording.calls),
        "num_layers": len(layers),
        "num_tensors_total": len(operations),
        "tensor_fsize_total": sum(one.value.nbytes for one in operations),
        "num_tensors_saved": len(kept),
        "tensor_fsize_saved": sum(one.value.nbytes for one in kept),
        "total_param_tensors": len(sizes),
        "total_param_layers": len({id(one.passes) for one in operations if one.parameters}),
        "total_params": sum(sizes.values()),
        "total_params_trainable": sum(sizes[name] for name in recording.trainable),
        "total_params_fsize": recording.parameter_bytes,
        "pass_start_time": recording.started,
        "pass_end_time": recording.started + recording.elapsed,
        "elapsed_time_total": recording.elapsed,
        "elapsed_time_function_calls": seconds,
        "elapsed_time_torchlens_logging": max(0.0, recording.elapsed - seconds),
        "layer_list": tuple([one.label for one in operations if one.is_numbered]),
        "top_level_module_passes": tuple(
            [call.label for call in recording.module_calls if call.parent is not None and _is_of_model(call.parent)]
        ),
    }


def _is_of_model(call: ModuleCall) -> bool:
    return call.address == ""


def _is_branching(escape: EscapeRecord) -> bool:
    is_truth_test = escape.function in ("__bool__", "is_nonzero")
    return (is_truth_test or escape.statement != "expression") and escape.statement != "assert"


def expected_modules(recording: Recording) -> list[dict[str, Any]]:
    """Return the fields of each `ModuleRecord`, in order: those called first come first."""
    calls: dict[str, list[ModuleCall]] = defaultdict(list)
    inside: dict[int, list[str]] = defaultdict(list)
    for call in recording.module_calls:
        calls[call.address].append(call)
        inside[id(call.parent)].append(f"{call.address}:{call.number}")
    own: Counter[str] = Counter()
    for name, shape in recording.parameters.items():
        own[name.rpartition(".")[0]] += shape.numel()
    called = [address for address in calls if address in recording.modules]
    order = [*called, *(address for address in recording.modules if address not in calls)]
    children: dict[str, list[str]] = defaultdict(list)
    for address in filter(None, order):
        children[address.rpartition(".")[0]].append(address)
    return [
        {
            "address": address,
            "module_type": recording.modules[address],
            "num_passes": len(calls[address]),
            "children": tuple(children[address]),
            "num_params": own[address],
            "pass_children": tuple([tuple(inside[id(call)]) for call in calls[address]]),
        }
        for address in order
    ]


def model_faults(recording: Recording) -> Iterator[str]:
    """Yield each error of the recording about the model's modules and parameters."""
    model = recording.model()
    if model is None:
        return
    if recording.model_name != type(model).__name__:
        yield f"model_name is {recording.model_name!r}, the model is a {type(model).__name__}"
    for address, module in named_modules(model):
        kind = recording.modules.get(address, type(module).__name__)
        if kind != type(module).__name__ and "Lazy" not in kind:  # a lazy module takes another class in its first call
            yield f"module {address!r} is recorded as {kind}, it is a {type(module).__name__}"
    yield from _parameter_faults(recording)


def _parameter_faults(recording: Recording) -> Iterator[str]:
    """Yield wrong records of parameters that the pass read directly, and neither changed nor replaced."""
    trained = set(recording.trainable)
    read = _unchanged_parameters(recording)
    for name, shape in recording.parameters.items():
        live = read[name].live if name in read else None
        if live is None or is_lazy(live) or read[name].value.shape != live.shape:
            continue
        if shape != live.shape:
            yield f"parameter {name!r} is recorded as {tuple(shape)}, it has {tuple(live.shape)}"
        if live.requires_grad == read[name].value.requires_grad != (name in trained):
            yield f"parameter {name!r} is recorded as {'frozen' if live.requires_grad else 'trained'}"
    size = sum(source.live.nbytes for source in read.values() if not is_lazy(source.live))
    if read.keys() == recording.parameters.keys() and size != recording.parameter_bytes:
        yield f"total_params_fsize is {recording.parameter_bytes}, the parameters have {size} bytes"


def _unchanged_parameters(recording: Recording) -> dict[str, Source]:
    """Return the parameters that the pass read and that no call gave other values, another shape or flag."""
    sources = [source for source in recording.sources if source.kind == "parameter"]
    changed = {source.name for source in sources if source.written} | recording.replaced_parameters
    return {source.name: source for source in sources if source.name not in changed}


def module_call_faults(recording: Recording) -> Iterator[tuple[str, str]]:
    """Yield the label of a module call and what is wrong with it."""
    times: Counter[str] = Counter()
    seen: set[int] = set()
    for call in recording.module_calls:
        times[call.address] += 1
        name = call.label or "the model"
        if call.number != times[call.address]:
            yield name, f"it is call {call.number} of its module, and stands at place {times[call.address]} of them"
        if call.parent is not None and id(call.parent) not in seen:
            yield name, "the module call around it does not come before it"
        seen.add(id(call))
        kind = recording.modules.get(call.address, call.module_type)
        if call.module_type not in (kind, *recording.other_classes.get(call.address, ())):
            yield name, f"its class is {call.module_type}, the module there is a {kind}"
        if not 0 <= call.first <= call.last <= len(recording.calls):
            yield name, f"it ran from call {call.first} to {call.last} of {len(recording.calls)}"
        elif call.parent is not None and not recording.threaded and _is_outside(call, call.parent):
            yield name, f"it ran from call {call.first} to {call.last}, outside the module call around it"
        elif not recording.threaded and any(value.call >= call.first for value in call.inputs):
            yield name, "a value went into it that was made later"
        elif not recording.threaded and any(value.call >= call.last for value in call.outputs if value.call >= 0):
            yield name, "a value came out of it that was made later"


def _is_outside(call: ModuleCall, around: ModuleCall) -> bool:
    return not around.first <= call.first <= call.last <= max(around.last, around.first)


def history_labels(records: list[Operation]) -> dict[str, list[str]]:
    """Return the lists of labels that a history gives, by name."""
    by_flag = {name: [one.label for one in filter(attrgetter(flag), records)] for name, flag in _LISTS.items()}
    return {"layer_list": [one.label for one in records if one.layer_total_num >= 0], **by_flag}


_LISTS = {
    "input_layers": "is_input_layer",
    "output_layers": "is_output_layer",
    "buffer_layers": "is_buffer_layer",
    "constant_layers": "is_constant",
    "internally_initialized_layers": "initialized_inside_model",
    "internally_terminated_bool_layers": "is_terminal_bool_layer",
    "layers_computed_with_params": "computed_with_params",
}
