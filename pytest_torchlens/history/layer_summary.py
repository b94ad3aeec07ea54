"""The text that printing an operation gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pytest_torchlens.history.operation import LoggedOperation


def layer_summary(op: LoggedOperation) -> list[str]:
    """Return tensor, parameters, parents, children, function, modules, time and look-up keys, a line each."""
    place = f"operation {op.operation_num + 1}/{op.operations_total}" if op.operation_num >= 0 else op.layer_type
    passes = f" (pass {op.pass_num}/{op.layer_passes_total})" if op.layer_passes_total > 1 else ""
    lines = [
        f"Layer {op.layer_label}{passes}, {place}:",
        f"\tOutput tensor: shape={op.tensor_shape}, dtype={op.tensor_dtype}, size={human_size(op.tensor_fsize)}",
        *_corner(op.tensor_contents),
        f"\tParams: {_parameters(op)}",
        f"\tParent Layers: {', '.join(op.parent_layers) or 'none'}",
        f"\tChild Layers: {', '.join(op.child_layers) or 'none'}",
    ]
    if op.func_applied_name:
        lines.append(f"\tFunction: {op.func_applied_name} (gradfunc={op.gradfunc_name or 'none'})")
    lines.append(f"\tComputed inside module: {op.containing_module_origin or 'none'}")
    lines.append(f"\tTime elapsed: {op.func_time_elapsed: .3E}s")
    if op.modules_exited:
        lines.append(f"\tOutput of modules: {', '.join(op.modules_exited)}")
    if op.is_bottom_level_submodule_output:
        lines.append(f"\tOutput of bottom-level module: {op.bottom_level_submodule_exited}")
    if op.source_line:
        lines.append(f"\tSource: {op.source_line}")
    lines.append(f"\tLookup keys: {', '.join(map(str, op.lookup_keys))}")
    return lines


def _parameters(op: LoggedOperation) -> str:
    if not op.computed_with_params:
        return "no params used"
    shapes = ", ".join(map(str, op.parent_param_shapes))
    size = human_size(op.parent_params_fsize)
    return f"Computed from params with shape {shapes}; {op.num_params_total} params total ({size})"


_CORNER = 5


def _corner(tensor: torch.Tensor | None) -> list[str]:
    """Return the first rows and columns of the last two dimensions, or why there are none."""
    if tensor is None:
        return ["\t\t(not saved)"]
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return [f"\t\t({tensor.layout} tensor on {tensor.device})"]
    with torch.no_grad():
        corner = tensor.detach()
        while corner.dim() > 2 and corner.shape[0]:  # noqa: PLR2004 - rows and columns
            corner = corner[0]
        cut = corner[(slice(_CORNER),) * corner.dim()]
        more = "..." if cut.numel() < tensor.numel() else ""
        return [f"\t\t{cut}{more}"]


_UNIT = 1024.0


def human_size(size: int) -> str:
    """Return bytes as text with a unit of powers of 1,024: ``"253.5 KB"``."""
    if size < _UNIT:
        return f"{size} B"
    amount, units = float(size), iter(["KB", "MB", "GB", "TB"])
    unit = ""
    while amount >= _UNIT and (unit := next(units, "")):
        amount /= _UNIT
    return f"{amount:.1f} {unit}"
