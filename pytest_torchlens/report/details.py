"""What a page tells of an operation or a module that is chosen in the graph or the table."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from pytest_torchlens.draw import module_id
from pytest_torchlens.draw import node_id
from pytest_torchlens.draw.text import counted
from pytest_torchlens.draw.text import duration
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import shortened
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of
from pytest_torchlens.records import byte_size
from pytest_torchlens.report.inline import row_id
from pytest_torchlens.report.views import Views

_LONGEST = 300
_MOST_LINKS = 50

Pairs = list[tuple[str, str]]


def details(history: HistoryRecord, views: Views) -> dict[str, Any]:
    """Return everything the page looks up: layers by the id of their row, modules by the id of their node."""
    operations = {key: op for op in history.operations for key in (op.layer_label_w_pass, op.label)}
    smallest = _smallest_view(views)
    modules = {module.address: module for module in history.modules}
    layers = {
        row_id(op): {
            "label": op.label,
            "nodes": _nodes(op),
            "view": next((smallest[id_] for id_ in _nodes(op) if id_ in smallest), ""),
            "facts": [(name, shortened(printable(text), _LONGEST)) for name, text in _facts(op) if text],
            "from": _links(op.parent_layers, operations),
            "to": _links(op.child_layers, operations),
        }
        for op in history.operations
    }
    calls = dict.fromkeys(call for op in history.operations for call in op.containing_module_origin_nested)
    return {"layers": layers, "modules": {module_id(call): _module(call, modules) for call in calls}}


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


def _facts(op: Operation) -> Iterator[tuple[str, str]]:
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
    yield "time", duration(op.func_time_elapsed) if op.func_time_elapsed else ""
    yield "random", "draws random numbers" if op.function_is_random else ""
    yield "backward", op.gradfunc_name
    yield "fingerprint", op.fingerprint
    yield "source", op.source_line


def _module(call: str, modules: Mapping[str, ModuleRecord]) -> dict[str, Any]:
    module = modules.get(address_of(call, modules)) or ModuleRecord(address=call, module_type="")
    facts: Pairs = [("class", module.module_type), ("calls", f"{module.num_passes:,}")]
    if module.num_params:
        facts.append(("own parameters", counted(module.num_params, "element")))
    return {"label": call, "facts": [(name, shortened(printable(text), _LONGEST)) for name, text in facts]}
