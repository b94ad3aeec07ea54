"""The graph with all passes of a layer as one node."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation


def rolled(history: HistoryRecord) -> HistoryRecord:
    """Return a history with one operation for each layer: the first pass, with the edges of all."""
    layer_of = {op.label: op.layer_label for op in history.operations}
    passes: dict[str, list[Operation]] = {}
    for op in history.operations:
        passes.setdefault(op.layer_label, []).append(op)
    return dataclasses.replace(history, operations=tuple(_as_one(ops, layer_of) for ops in passes.values()))


def _as_one(passes: list[Operation], layer_of: dict[str, str]) -> Operation:
    edges = [dataclasses.replace(edge, parent=layer_of[edge.parent]) for op in passes for edge in op.edges]
    return dataclasses.replace(
        passes[0],
        edges=tuple(dict.fromkeys(edges)),
        parent_layers=_layers((label for op in passes for label in op.parent_layers), layer_of),
        child_layers=_layers((label for op in passes for label in op.child_layers), layer_of),
    )


def _layers(labels: Iterable[str], layer_of: dict[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(layer_of[label] for label in labels))
