"""The graph as text for terminals and logs: a line for each operation, in execution order, inside its modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.records import address_of

if TYPE_CHECKING:
    from pytest_torchlens.history.layers_and_operations import LoggedOperation
    from pytest_torchlens.history.view import HistoryView
    from pytest_torchlens.records import RolledEdge


@dataclass(frozen=True)
class _Line:
    """A node of the graph: its label, its shape, where it stands, and the nodes that it reads."""

    label: str
    what: str
    modules: tuple[str, ...]
    parents: tuple[str, ...]


def graph_text(history: HistoryView, rolled: bool = False) -> str:
    """Return the graph as text; see `HistoryView.to_text`."""
    lines = list(_layers(history) if rolled else _operations(history))
    width = max((2 * len(line.modules) + len(line.label) for line in lines), default=0)
    widest = max((len(line.what) for line in lines), default=0)
    rows: list[str] = []
    before = _Line("", "", (), ())
    for line in lines:
        rows += _entered(history, before.modules, line.modules)
        indent = "  " * len(line.modules)
        row = f"{indent + line.label:{width}}  {line.what:{widest}}"
        rows.append(f"{row}  {_read(line, before.label)}".rstrip())
        before = line
    return "\n".join(rows)


def _operations(history: HistoryView) -> Iterator[_Line]:
    own = _buffers_of_own_module(history)
    for op, modules in _placed(history, own):
        parents = dict.fromkeys(edge.parent for edge in op.edges if edge.parent not in own)
        yield _Line(op.label, _what(op), modules, tuple(parents))


def _layers(history: HistoryView) -> Iterator[_Line]:
    """Yield a line for each layer, at its first pass."""
    own = {history[label].layer_label for label in _buffers_of_own_module(history)}
    edges: dict[str, list[RolledEdge]] = {}
    for edge in history.rolled_edges:
        if edge.parent not in own:
            edges.setdefault(edge.child, []).append(edge)
    for op, calls in _placed(history, own):
        if op.pass_num == 1:
            times = f" x{op.layer_passes_total}" if op.layer_passes_total > 1 else ""
            modules = tuple(address_of(call, history.module_types) for call in calls)
            parents = dict.fromkeys(_source(edge) for edge in edges.get(op.layer_label, ()))
            yield _Line(op.layer_label + times, _what(op), modules, tuple(parents))


def _what(op: LoggedOperation) -> str:
    """Return the shape, of a buffer with its address."""
    return f"{shape_text(op.tensor_shape)} {op.buffer_address or ''}".rstrip()


def _source(edge: RolledEdge) -> str:
    passes = ", ".join(filter(None, (edge.out_label, edge.in_label)))
    return f"{edge.parent} ({passes})" if passes else edge.parent


def _buffers_of_own_module(history: HistoryView) -> set[str]:
    """Return the buffers that only operations of the module read that holds them: running means, masks."""
    by_label = {op.label: op for op in history.operations}
    return {
        op.label
        for op in history.operations
        if op.buffer_address is not None
        if all(_runs_in(history, by_label[child], op.buffer_address.rpartition(".")[0]) for child in op.child_layers)
    }


def _runs_in(history: HistoryView, op: LoggedOperation, address: str) -> bool:
    return any(address_of(call, history.module_types) == address for call in op.containing_module_origin_nested)


def _placed(history: HistoryView, left_out: set[str]) -> list[tuple[LoggedOperation, tuple[str, ...]]]:
    """Return operations with their module calls; what is no operation, as a constant, stands with the one behind it."""
    placed: list[tuple[LoggedOperation, tuple[str, ...]]] = []
    modules: tuple[str, ...] = ()
    for op in reversed(history.operations):
        modules = op.containing_module_origin_nested if op.operation_num >= 0 else modules
        if op.label not in left_out and op.layer_label not in left_out:
            placed.append((op, modules))
    return placed[::-1]


def _entered(history: HistoryView, before: tuple[str, ...], now: tuple[str, ...]) -> Iterator[str]:
    """Yield a line for each module that the data enter between two operations."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))
    for depth, call in enumerate(now[shared:], shared):
        kind = history.module_types.get(address_of(call, history.module_types))
        yield "  " * depth + printable(f"{call} ({kind})" if kind else call)


def _read(line: _Line, before: str) -> str:
    """Return what a node reads, where that is anything but the node of the line above."""
    return "" if line.parents in ((), (before,)) else "<- " + ", ".join(line.parents)
