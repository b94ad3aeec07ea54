"""Histories, operations and layers in a notebook: tables without scripts; names from models are escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from pytest_torchlens.history.facts import Facts
from pytest_torchlens.history.facts import corner_of
from pytest_torchlens.history.facts import facts_of_layer
from pytest_torchlens.history.facts import facts_of_operation
from pytest_torchlens.history.facts import title_of_layer
from pytest_torchlens.history.facts import title_of_operation
from pytest_torchlens.history.summary import heading
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import byte_size

if TYPE_CHECKING:
    from pytest_torchlens.history.layer import Layer
    from pytest_torchlens.history.operation import LoggedOperation

_COLUMNS = ("", "Layer", "Shape", "Type", "Size", "Module", "Parameters", "Parents", "Time (ms)", "Source")
_OPEN_UP_TO = 50
_MOST_ROWS = 500
_LEFT = "text-align:left;vertical-align:top"


def of_history(record: HistoryRecord, operations: list[LoggedOperation]) -> str:
    """Return the summary, the modules, and a table of the layers; long tables are folded, and cut with a note."""
    title, *lines = (line.strip() for line in heading(record))
    facts = "".join(f"<li>{escape(line)}</li>" for line in lines)
    modules = _folded(f"Modules ({len(record.modules) - 1})", _modules(record), len(record.modules))
    more = len(operations) - _MOST_ROWS
    note = f"<p>… and {more:,} more: <code>history.to_pandas()</code> has all</p>" if more > 0 else ""
    layers = _folded(f"Layers ({len(record.layer_list)})", _table(operations[:_MOST_ROWS]) + note, len(operations))
    return f"<div><strong>{escape(title)}</strong><ul>{facts}</ul>{modules}{layers}</div>"


def of_operation(op: LoggedOperation) -> str:
    """Return the facts of an operation as a table, the corner of its tensor, and where in the code it was called."""
    facts = facts_of_operation(op)
    if op.source_line:
        facts.append(("Source", op.source_line))
    return _of_one(title_of_operation(op), facts, f"<pre>{escape(corner_of(op))}</pre>")


def of_layer(layer: Layer) -> str:
    """Return the facts of a layer as a table, and a table of its passes."""
    return _of_one(title_of_layer(layer), facts_of_layer(layer), _folded("Passes", _table(layer), len(layer)))


def _of_one(title: str, facts: Facts, below: str) -> str:
    rows = "".join(f'<tr><th style="{_LEFT}">{escape(name)}</th>{_cell(text)}</tr>' for name, text in facts)
    return f"<div><strong>{escape(title)}</strong><table><tbody>{rows}</tbody></table>{below}</div>"


def _folded(title: str, content: str, length: int) -> str:
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


def _table(operations: Iterable[Operation]) -> str:
    head = "".join(f'<th style="{_LEFT}">{name}</th>' for name in _COLUMNS)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, operations))}</tbody></table>"


def _row(op: Operation) -> str:
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
    )
    return f"<tr>{''.join(map(_cell, cells))}</tr>"


def _cell(text: str) -> str:
    return f'<td style="{_LEFT}">{escape(text)}</td>'
