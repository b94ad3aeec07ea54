"""What a page tells of an operation or a module that is chosen in the graph or the table."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from pytest_torchlens.draw import module_id
from pytest_torchlens.draw import node_id
from pytest_torchlens.draw.text import counted
from pytest_torchlens.draw.text import duration
from pytest_torchlens.draw.text import magnitude
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import shortened
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import ModuleMeasurements
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of
from pytest_torchlens.records import byte_size
from pytest_torchlens.report.costs import Costs
from pytest_torchlens.report.inline import row_id
from pytest_torchlens.report.views import Views

_LONGEST = 300
_MOST_LINKS = 50


def details(report: ModelReport, costs: Costs, views: Views) -> dict[str, Any]:
    """Return everything the page looks up: layers by the id of their row, modules by the id of their node."""
    history = costs.history
    operations = {key: op for op in history.operations for key in (op.layer_label_w_pass, op.label)}
    smallest = _smallest_view(views)
    modules = {module.address: module for module in history.modules}
    layers = {
        row_id(op): {
            "label": op.label,
            "nodes": _nodes(op),
            "view": next((smallest[id_] for id_ in _nodes(op) if id_ in smallest), ""),
            "facts": [(name, shortened(printable(text), _LONGEST)) for name, text in _facts(op, costs) if text],
            "code": report.code.get(op.source_line, ""),
            "from": _links(op.parent_layers, operations),
            "to": _links(op.child_layers, operations),
        }
        for op in history.operations
    }
    around = {op.containing_module_origin_nested: None for op in history.operations}
    paths = {call: path[: place + 1] for path in around for place, call in enumerate(path)}
    costs_of = {module.address: module for module in report.measurements.modules} if report.measurements else {}
    firsts = {address_of(call, modules): module_id(call) for call in reversed(paths)}
    told = {
        module_id(call): _module(path, modules, costs_of) | {"view": firsts[address_of(call, modules)]}
        for call, path in paths.items()
    }
    return {"layers": layers, "modules": told}


def _nodes(op: Operation) -> list[str]:
    """Return the ids of what may stand for an operation in a drawing: itself, or a module around it."""
    return [node_id(op), *map(module_id, reversed(op.containing_module_origin_nested))]


def _smallest_view(views: Views) -> dict[str, str]:
    """Return for each node the drawing with the fewest nodes that it is in."""
    by_size = sorted(views.views, key=lambda view: -len(view.ids))
    return {id_: view.key for view in by_size for id_ in view.ids}


def _links(labels: tuple[str, ...], operations: Mapping[str, Operation]) -> list[tuple[str, str]]:
    known = (operations[label] for label in labels[:_MOST_LINKS] if label in operations)
    return [(op.label, row_id(op)) for op in known]


def _facts(op: Operation, costs: Costs) -> Iterator[tuple[str, str]]:
    """Yield names and texts; those without text are not shown."""
    params = zip(op.parent_param_addresses, op.parent_param_shapes, strict=False)
    frozen = op.num_params_total - op.num_params_trainable
    yield "shape", f"{shape_text(op.tensor_shape)}, {op.tensor_dtype.removeprefix('torch.')} on {op.tensor_device}"
    yield "size", byte_size(op.tensor_fsize)
    yield "function", op.func_applied_name + (" (in place)" if op.function_is_inplace else "")
    yield "inside", op.composite
    yield "arguments", ", ".join(op.func_position_args_non_tensor + op.func_keyword_args_non_tensor)
    yield "parameters", ", ".join(f"{name} {shape_text(shape)}" for name, shape in params)
    yield "of them frozen", f"{frozen:,}" if frozen else ""
    yield "buffer", op.buffer_address or ""
    yield "constant", op.constant_origin
    yield "module", " › ".join(op.containing_module_origin_nested)
    yield "pass", f"{op.pass_num} of {op.layer_passes_total}" if op.layer_passes_total > 1 else ""
    yield "time", duration(costs.seconds(op)) if costs.seconds(op) else ""
    yield "FLOPs", magnitude(costs.flops(op) or 0) if costs.flops(op) else ""
    yield "random", "draws random numbers" if op.function_is_random else ""
    yield "backward", op.gradfunc_name
    yield "fingerprint", op.fingerprint
    yield "source", op.source_line


def _module(
    path: tuple[str, ...], modules: Mapping[str, ModuleRecord], costs: Mapping[str, ModuleMeasurements]
) -> dict[str, Any]:
    call = path[-1]
    address = address_of(call, modules)
    module = modules.get(address) or ModuleRecord(address=call, module_type="")
    facts = [("class", module.module_type), ("calls", f"{module.num_passes:,}")]
    if module.num_params:
        facts.append(("own parameters", counted(module.num_params, "element")))
    if cost := costs.get(address):
        facts += [("time", duration(cost.seconds)), ("of it its own", duration(cost.self_seconds))]
        facts += [("FLOPs", magnitude(cost.flops)), ("bytes moved", byte_size(cost.bytes_moved))]
    return {
        "label": call,
        "around": [module_id(name) for name in reversed(path[:-1])],
        "facts": [(name, shortened(printable(text), _LONGEST)) for name, text in facts],
    }
