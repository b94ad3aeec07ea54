"""A history as a pandas table and as a networkx graph; both libraries are imported at first use."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.records import Operation
from pytest_torchlens.records import RolledEdge

if TYPE_CHECKING:
    import networkx
    import pandas

_FIELDS = [name for name in Operation.__dataclass_fields__ if name not in ("edges", "source_place")]


def to_pandas(operations: Iterable[Operation], rolled: bool = False) -> pandas.DataFrame:
    """Return a table with a row for each operation, or each layer, and a column for each field."""
    rows = _layers(operations) if rolled else {op.label: _fields(op) for op in operations}
    cells = [[_as_utf8(row[name]) for name in _FIELDS] for row in rows.values()]
    index = [_as_utf8(label) for label in rows]
    frame: pandas.DataFrame = library("pandas").DataFrame(cells, index=index, columns=_FIELDS)
    return frame.rename_axis("label")


def _as_utf8(value: Any) -> Any:
    r"""Return text with ``\\udc80`` for each lone surrogate, which Arrow cannot store; other values unchanged."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def to_networkx(operations: Iterable[Operation]) -> networkx.MultiDiGraph:
    """Return a graph with a node for each operation and an edge for each tensor argument, with its argument path."""
    graph = library("networkx").MultiDiGraph()
    operations = list(operations)
    graph.add_nodes_from((op.label, _fields(op)) for op in operations)
    for op in operations:
        for edge in op.edges:
            graph.add_edge(edge.parent, op.label, argument=edge.argument, through_write=edge.through_write)
    return graph


def rolled_to_networkx(operations: Iterable[Operation], edges: Iterable[RolledEdge]) -> networkx.MultiDiGraph:
    """Return a graph with a node for each layer and an edge for each tensor argument, with the passes that use it."""
    graph = library("networkx").MultiDiGraph()
    graph.add_nodes_from(_layers(operations).items())
    for edge in edges:
        attributes = {"argument": edge.argument, "through_write": edge.through_write, "passes": edge.passes}
        graph.add_edge(edge.parent, edge.child, **attributes)
    return graph


def _fields(op: Operation) -> dict[str, Any]:
    return {name: getattr(op, name) for name in _FIELDS}


def _layers(operations: Iterable[Operation]) -> dict[str, dict[str, Any]]:
    """Return the fields of each layer: the value that all passes share, else a tuple with the value of each pass."""
    passes: dict[str, list[Operation]] = {}
    for op in operations:
        passes.setdefault(op.layer_label, []).append(op)
    return {
        label: {name: _common([getattr(op, name) for op in ops]) for name in _FIELDS} for label, ops in passes.items()
    }


def _common(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else tuple(values)


def library(name: str) -> Any:
    """Return a library of the extra ``graphs``; raises `ImportError` with how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"{name} is not installed; run: pip install 'pytest-torchlens[graphs]'") from None
