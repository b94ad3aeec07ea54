"""A history as a table of pandas and as a graph of networkx; both are imported when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.records import Operation

if TYPE_CHECKING:
    import networkx
    import pandas

_FIELDS = [name for name in Operation.__dataclass_fields__ if name != "edges"]


def to_pandas(operations: Iterable[Operation]) -> pandas.DataFrame:
    """Return a row an operation, a column a field."""
    rows = {op.label: _fields(op) for op in operations}
    frame: pandas.DataFrame = _library("pandas").DataFrame(list(rows.values()), index=list(rows), columns=_FIELDS)
    return frame.rename_axis("label")


def to_networkx(operations: Iterable[Operation]) -> networkx.MultiDiGraph:
    """Return a node an operation; an edge for each tensor argument, with its place among the arguments."""
    graph = _library("networkx").MultiDiGraph()
    operations = list(operations)
    graph.add_nodes_from((op.label, _fields(op)) for op in operations)
    for op in operations:
        for edge in op.edges:
            graph.add_edge(edge.parent, op.label, argument=edge.argument, through_write=edge.through_write)
    return graph


def _fields(op: Operation) -> dict[str, Any]:
    return {name: getattr(op, name) for name in _FIELDS}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"{name} is not installed; run: pip install 'pytest-torchlens[graphs]'") from None
