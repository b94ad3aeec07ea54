"""What printing an operation or a layer tells, a name and a text for each line; text and HTML are made from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from pytest_torchlens.records import byte_size

if TYPE_CHECKING:
    from pytest_torchlens.history.layer import Layer
    from pytest_torchlens.history.operation import LoggedOperation

Facts = list[tuple[str, str]]


def as_text(title: str, facts: Facts, corner: str = "") -> str:
    """Return title and facts, a line each, with the corner of the tensor after the first."""
    lines = [f"\t{name}: {text}" for name, text in facts]
    return "\n".join([f"{title}:", *lines[:1], *([f"\t\t{corner}"] if corner else []), *lines[1:]])


def title_of_operation(op: LoggedOperation) -> str:
    """Return label, pass, and place in the history."""
    place = f"operation {op.operation_num + 1}/{op.operations_total}" if op.operation_num >= 0 else op.layer_type
    passes = f" (pass {op.pass_num}/{op.layer_passes_total})" if op.layer_passes_total > 1 else ""
    return f"Layer {op.layer_label}{passes}, {place}"


def facts_of_operation(op: LoggedOperation) -> Facts:
    """Return tensor, parameters, parents, children, function, modules, time and look-up keys."""
    facts = [
        ("Output tensor", f"shape={op.tensor_shape}, dtype={op.tensor_dtype}, size={byte_size(op.tensor_fsize)}"),
        ("Params", _parameters(op)),
        ("Parent Layers", _joined(op.parent_layers)),
        ("Child Layers", _joined(op.child_layers)),
        *_function(op),
        ("Computed inside module", op.containing_module_origin or "none"),
        ("Time elapsed", f"{op.func_time_elapsed: .3E}s"),
    ]
    if op.modules_exited:
        facts.append(("Output of modules", _joined(op.modules_exited)))
    if op.is_bottom_level_submodule_output:
        facts.append(("Output of bottom-level module", str(op.bottom_level_submodule_exited)))
    return [*facts, ("Lookup keys", _joined(map(str, op.lookup_keys)))]


def title_of_layer(layer: Layer) -> str:
    """Return label and number of passes."""
    return f"Layer {layer.layer_label}, {len(layer)} passes"


def facts_of_layer(layer: Layer) -> Facts:
    """Return what `facts_of_operation` does, of all passes together, and the labels of the passes."""
    first = layer.passes[0]
    shapes = _joined(dict.fromkeys(str(each.tensor_shape) for each in layer))
    dtypes = _joined(dict.fromkeys(each.tensor_dtype for each in layer))
    exited = dict.fromkeys(call for each in layer for call in each.modules_exited)
    facts = [
        ("Output tensor", f"shape={shapes}, dtype={dtypes}, size={byte_size(sum(op.tensor_fsize for op in layer))}"),
        ("Params", _parameters(first)),
        ("Parent Layers", _joined(dict.fromkeys(_end(edge.parent, edge.in_label) for edge in layer.parent_edges))),
        ("Child Layers", _joined(dict.fromkeys(_end(edge.child, edge.out_label) for edge in layer.child_edges))),
        *_function(first),
        ("Computed inside module", _joined(dict.fromkeys(op.containing_module_origin or "none" for op in layer))),
        ("Time elapsed", f"{sum(op.func_time_elapsed for op in layer): .3E}s"),
    ]
    if exited:
        facts.append(("Output of modules", _joined(exited)))
    return [
        *facts,
        ("Lookup keys", _joined([first.layer_label_short, first.layer_label])),
        ("Passes", _joined(each.layer_label_w_pass for each in layer)),
    ]


def _end(label: str, passes: str) -> str:
    return f"{label} ({passes})" if passes else label


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts) or "none"


def _function(op: LoggedOperation) -> Facts:
    name = op.func_applied_name
    return [("Function", f"{name} (gradfunc={op.gradfunc_name or 'none'})")] if name else []


def _parameters(op: LoggedOperation) -> str:
    if not op.computed_with_params:
        return "no params used"
    shapes = ", ".join(map(str, op.parent_param_shapes))
    frozen = frozen_text(op.num_params_total, op.num_params_trainable)
    return (
        f"Computed from params with shape {shapes}; "
        f"{op.num_params_total} params total{frozen} ({byte_size(op.parent_params_fsize)})"
    )


def frozen_text(total: int, trainable: int) -> str:
    """Return how many parameters are not trained: ``", 10 of them frozen"``; nothing where all are trained."""
    frozen = total - trainable
    if not frozen:
        return ""
    return ", all frozen" if frozen == total else f", {frozen} of them frozen"


_CORNER = 5


def corner_of(op: LoggedOperation) -> str:
    """Return the first rows and columns of the last two dimensions of the saved tensor, or why there are none."""
    tensor = op.tensor_contents
    if tensor is None:
        return "(not saved)"
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        kind = "nested" if tensor.is_nested else tensor.dtype if tensor.is_quantized else tensor.layout
        return f"({kind} tensor on {tensor.device})"
    with torch.no_grad():
        corner = tensor.detach()
        while corner.dim() > 2 and corner.shape[0]:  # noqa: PLR2004 - rows and columns
            corner = corner[0]
        cut = corner[(slice(_CORNER),) * corner.dim()]
        return f"{cut}{'...' if cut.numel() < tensor.numel() else ''}"
