"""Text and HTML of histories, layers and operations.

Both are made from the same pairs of name and text.  The HTML has no scripts; names from models are escaped.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import torch

from pytest_torchlens.capture.wrappers import is_wrapper
from pytest_torchlens.records import EditsByOperation
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import byte_size
from pytest_torchlens.records import edits_lines

if TYPE_CHECKING:
    from pytest_torchlens.history.layers_and_operations import Layer
    from pytest_torchlens.history.layers_and_operations import LoggedOperation


Facts = list[tuple[str, str]]


def as_text(title: str, facts: Facts, crop: str = "") -> str:
    """Return title and facts, a line each, with the crop of the tensor after the first fact."""
    lines = [f"\t{name}: {text}" for name, text in facts]
    return "\n".join([f"{title}:", *lines[:1], *([f"\t\t{crop}"] if crop else []), *lines[1:]])


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
        ("Parent Layers", _comma_list(op.parent_layers)),
        ("Child Layers", _comma_list(op.child_layers)),
        *_function(op),
        *_steps([op]),
        ("Computed inside module", op.containing_module_origin or "none"),
        ("Time elapsed", f"{op.func_time_elapsed: .3E}s"),
    ]
    if op.modules_exited:
        facts.append(("Output of modules", _comma_list(op.modules_exited)))
    if op.is_bottom_level_submodule_output:
        facts.append(("Output of bottom-level module", str(op.bottom_level_submodule_exited)))
    return [*facts, ("Lookup keys", _comma_list(map(str, op.lookup_keys)))]


def title_of_layer(layer: Layer) -> str:
    """Return label and number of passes."""
    return f"Layer {layer.layer_label}, {len(layer)} passes"


def facts_of_layer(layer: Layer) -> Facts:
    """Return the facts of all passes together, and the labels of the passes."""
    first = layer.passes[0]
    shapes = _comma_list(dict.fromkeys(str(each.tensor_shape) for each in layer))
    dtypes = _comma_list(dict.fromkeys(each.tensor_dtype for each in layer))
    exited = dict.fromkeys(call for each in layer for call in each.modules_exited)
    facts = [
        ("Output tensor", f"shape={shapes}, dtype={dtypes}, size={byte_size(sum(op.tensor_fsize for op in layer))}"),
        ("Params", _parameters(first)),
        (
            "Parent Layers",
            _comma_list(dict.fromkeys(_endpoint(edge.parent, edge.in_label) for edge in layer.parent_edges)),
        ),
        (
            "Child Layers",
            _comma_list(dict.fromkeys(_endpoint(edge.child, edge.out_label) for edge in layer.child_edges)),
        ),
        *_function(first),
        *_steps(layer.passes),
        ("Computed inside module", _comma_list(dict.fromkeys(op.containing_module_origin or "none" for op in layer))),
        ("Time elapsed", f"{sum(op.func_time_elapsed for op in layer): .3E}s"),
    ]
    if exited:
        facts.append(("Output of modules", _comma_list(exited)))
    return [
        *facts,
        ("Lookup keys", _comma_list([first.layer_label_short, first.layer_label])),
        ("Passes", _comma_list(each.layer_label_w_pass for each in layer)),
    ]


def _endpoint(label: str, passes: str) -> str:
    return f"{label} ({passes})" if passes else label


def _comma_list(texts: Iterable[str]) -> str:
    return ", ".join(texts) or "none"


def _function(op: LoggedOperation) -> Facts:
    name = op.func_applied_name
    return [("Function", f"{name} (gradfunc={op.gradfunc_name or 'none'})")] if name else []


def _steps(passes: Sequence[LoggedOperation]) -> Facts:
    """Return what ran inside an operation; where passes ran something else, each list with its passes."""
    passes_of: dict[tuple[str, ...], list[str]] = {}
    for op in passes:
        passes_of.setdefault(op.steps, []).append(str(op.pass_num))
    if len(passes_of) == 1:
        return [("Steps inside", ", ".join(steps)) for steps in passes_of if steps]
    lists = (f"{_comma_list(steps)} (pass {', '.join(numbers)})" for steps, numbers in passes_of.items())
    return [("Steps inside", "; ".join(lists))]


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
    """Return how many parameters are not trained: ``", 10 of them frozen"``; ``""`` if all are trained."""
    frozen = total - trainable
    if not frozen:
        return ""
    return ", all frozen" if frozen == total else f", {frozen} of them frozen"


_CROP_SIZE = 5


def crop_of(op: LoggedOperation) -> str:
    """Return the first rows and columns of the last two dimensions of the saved tensor, or why they are missing."""
    tensor = op.tensor_contents
    if tensor is None:
        return f"(not saved: layers_to_save=[{op.layer_label!r}] of log_forward_pass saves it)"
    with torch._C.DisableTorchFunction():
        return _crop(tensor)


def _crop(tensor: torch.Tensor) -> str:
    if is_wrapper(tensor):
        return f"({type(tensor).__name__} on {tensor.device})"
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        kind = "nested" if tensor.is_nested else tensor.dtype if tensor.is_quantized else tensor.layout
        return f"({kind} tensor on {tensor.device})"
    with torch.no_grad():
        matrix = tensor.detach()
        while matrix.dim() > 2 and matrix.shape[0]:  # noqa: PLR2004 - rows and columns
            matrix = matrix[0]
        crop = matrix[(slice(_CROP_SIZE),) * matrix.dim()]
        return f"{crop}{'...' if crop.numel() < tensor.numel() else ''}"


_COLUMNS = ("", "Layer", "Shape", "Type", "Size", "Module", "Parameters", "Parents", "Time (ms)", "Source")
_EDITS = "Edits"
_OPEN_UP_TO = 50
_MOST_ROWS = 500
_ALIGNED_LEFT = "text-align:left;vertical-align:top"
_SCROLLED = "overflow:auto;max-height:45em"


def of_history(record: HistoryRecord, operations: list[LoggedOperation], svg: str = "") -> str:
    """Return the summary, the picture if there is one, the modules, and a table of the layers.

    A long table is folded, and cut with a note.
    """
    title, *lines = (line.strip() for line in heading(record))
    facts = "".join(f"<li>{escape(line)}</li>" for line in lines)
    modules = _details(f"Modules ({len(record.modules) - 1})", _modules(record), len(record.modules))
    more = len(operations) - _MOST_ROWS
    note = f"<p>… and {more:,} more: <code>history.to_pandas()</code> has all</p>" if more > 0 else ""
    table = _table(operations[:_MOST_ROWS], EditsByOperation(record))
    layers = _details(f"Layers ({len(record.layer_list)})", table + note, len(operations))
    picture = svg and f'<div style="{_SCROLLED}">{svg[svg.index("<svg") :]}</div>'
    return f"<div><strong>{escape(title)}</strong><ul>{facts}</ul>{picture}{modules}{layers}</div>"


def of_operation(op: LoggedOperation) -> str:
    """Return the facts of an operation as a table, its source line, and the crop of its tensor."""
    facts = facts_of_operation(op)
    if op.source_line:
        facts.append(("Source", op.source_line))
    return _of_one(title_of_operation(op), facts, f"<pre>{escape(crop_of(op))}</pre>")


def of_layer(layer: Layer) -> str:
    """Return the facts of a layer as a table, and a table of its passes."""
    return _of_one(title_of_layer(layer), facts_of_layer(layer), _details("Passes", _table(layer), len(layer)))


def _of_one(title: str, facts: Facts, below: str) -> str:
    rows = "".join(f'<tr><th style="{_ALIGNED_LEFT}">{escape(name)}</th>{_cell(text)}</tr>' for name, text in facts)
    return f"<div><strong>{escape(title)}</strong><table><tbody>{rows}</tbody></table>{below}</div>"


def _details(title: str, content: str, length: int) -> str:
    return f"<details{' open' if length <= _OPEN_UP_TO else ''}><summary>{escape(title)}</summary>{content}</details>"


def _modules(record: HistoryRecord) -> str:
    by_address = {module.address: module for module in record.modules}
    return _children(by_address[""], by_address)


def _children(module: ModuleRecord, by_address: dict[str, ModuleRecord]) -> str:
    items = [_module(by_address[address], by_address) for address in module.children]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _module(module: ModuleRecord, by_address: dict[str, ModuleRecord]) -> str:
    calls = "" if module.num_passes == 1 else f", called {module.num_passes} times"
    text = f"{module.address}: {module.module_type}{calls}"
    return f"<li>{escape(text)}{_children(module, by_address)}</li>"


def _table(operations: Iterable[Operation], edits: EditsByOperation | None = None) -> str:
    columns = (*_COLUMNS, _EDITS) if edits else _COLUMNS
    head = "".join(f'<th style="{_ALIGNED_LEFT}">{name}</th>' for name in columns)
    rows = "".join(_row(op, [edits.words(op)] if edits else []) for op in operations)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(op: Operation, more: Iterable[str]) -> str:
    cells = (
        str(op.operation_num) if op.operation_num >= 0 else "",
        op.label,
        "×".join(map(str, op.tensor_shape)) or "scalar",
        op.tensor_dtype.removeprefix("torch."),
        byte_size(op.tensor_fsize),
        op.containing_module_origin or "",
        f"{op.num_params_total:,}" if op.computed_with_params else "",
        ", ".join(op.parent_layers),
        f"{op.func_time_elapsed * 1000:.3f}",
        op.source_line,
        *more,
    )
    return f"<tr>{''.join(map(_cell, cells))}</tr>"


def _cell(text: str) -> str:
    return f'<td style="{_ALIGNED_LEFT}">{escape(text)}</td>'


_WIDTH = 100
_STEP = "    "


def summary(record: HistoryRecord) -> str:
    """Return structure, tensors and bytes, parameters, seed, time, module hierarchy and layers, a line each."""
    lines = [
        *heading(record),
        "\tModule Hierarchy:",
        *(f"\t\t{line}" for line in _hierarchy(record)),
        "\tLayers:",
        *(f"\t\t{place}: {label}" for place, label in enumerate(_with_edits(record))),
    ]
    return "\n".join(lines)


def heading(record: HistoryRecord) -> list[str]:
    """Return the summary's first lines: structure, tensors, parameters, seed, time."""
    frozen = frozen_text(record.total_params, record.total_params_trainable)
    saved = f"{_tensors(record.num_tensors_saved)} ({byte_size(record.tensor_fsize_saved)}) saved"
    return [
        f"Log of {record.model_name} forward pass:",
        f"\tModel structure: {_structure(record)}",
        f"\t{_tensors(record.num_tensors_total)} ({byte_size(record.tensor_fsize_total)}) computed in forward pass; "
        f"{saved}.",
        f"\t{record.total_param_tensors} parameter operations ({record.total_params} params total{frozen}; "
        f"{byte_size(record.total_params_fsize)}).",
        f"\tRandom seed: {'none set' if record.random_seed_used is None else record.random_seed_used}",
        f"\tTime elapsed: {record.elapsed_time_total:.3f}s",
        *(f"\t{line[:1].upper() + line[1:]}" for line in edits_lines(record.edits)),
    ]


def _tensors(count: int) -> str:
    return f"{count} tensor{'' if count == 1 else 's'}"


def _with_passes(labels: tuple[str, ...]) -> Iterator[str]:
    """Yield each label, with the number of passes if its layer has several: ``add_1_2:1 (1/3 passes)``."""
    totals = Counter(label.rpartition(":")[0] for label in labels)
    for label in labels:
        layer, _, pass_num = label.rpartition(":")
        yield f"{label} ({pass_num}/{totals[layer]} passes)" if layer else label


def _with_edits(record: HistoryRecord) -> Iterator[str]:
    """Yield each label with its passes, and what edits did to it: ``relu_3_8 (edited: 0.0; changed by 100 %)``."""
    edits = EditsByOperation(record)
    for label, shown in zip(record.layer_list, _with_passes(record.layer_list), strict=True):
        words = edits.words_of(label)
        yield f"{shown} ({words})" if words else shown


def _structure(record: HistoryRecord) -> str:
    loops = f"recurrent (at most {record.model_max_recurrent_loops} loops)"
    kind = loops if record.model_is_recurrent else "purely feedforward"
    branching = "with branching" if record.model_is_branching else "without branching"
    count = len(record.modules) - 1
    return f"{kind}, {branching}; {count} total module{'' if count == 1 else 's'}."


def _hierarchy(record: HistoryRecord) -> Iterator[str]:
    by_address = {module.address: module for module in record.modules}
    for address in by_address[""].children:
        child = by_address[address]
        yield f"{address}:" if child.children else address
        yield from _submodule_lines(child, by_address, _STEP)


def _submodule_lines(module: ModuleRecord, by_address: dict[str, ModuleRecord], indent: str) -> Iterator[str]:
    """Yield a line for each child that has children; consecutive children without any share their lines."""
    plain: list[str] = []
    for address in module.children:
        child = by_address[address]
        if not child.children:
            plain.append(address)
            continue
        yield from _wrap(plain, indent)
        plain = []
        yield f"{indent}{address}:"
        yield from _submodule_lines(child, by_address, indent + _STEP)
    yield from _wrap(plain, indent)


def _wrap(addresses: list[str], indent: str) -> list[str]:
    if not addresses:
        return []
    text = ", ".join(addresses)
    options = {"initial_indent": indent, "subsequent_indent": indent, "break_long_words": False}
    return textwrap.wrap(text, _WIDTH + len(indent), break_on_hyphens=False, **options)  # type: ignore[arg-type]
