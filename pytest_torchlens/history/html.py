"""A history in a notebook: the summary, and a table of the layers."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from pytest_torchlens.history.layer_summary import human_size
from pytest_torchlens.history.summary import heading
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation

_COLUMNS = ("", "Layer", "Shape", "Type", "Size", "Module", "Parameters", "Parents", "Time (ms)", "Source")


def as_html(record: HistoryRecord, operations: Iterable[Operation]) -> str:
    """Return HTML without scripts or styles of its own; names from models are escaped."""
    lines = "".join(f"<li>{escape(line.strip())}</li>" for line in heading(record)[1:])
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(map(_row, operations))
    return (
        f"<div><strong>{escape(heading(record)[0])}</strong><ul>{lines}</ul>"
        f"<details><summary>{len(record.layer_list)} layers</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details></div>"
    )


def _row(op: Operation) -> str:
    cells = (
        str(op.operation_num) if op.operation_num >= 0 else "",
        op.label,
        "×".join(map(str, op.tensor_shape)) or "scalar",
        op.tensor_dtype.removeprefix("torch."),
        human_size(op.tensor_fsize),
        op.containing_module_origin or "",
        str(op.num_params_total) if op.computed_with_params else "",
        ", ".join(op.parent_layers),
        f"{op.func_time_elapsed * 1000:.3f}",
        op.source_line,
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
