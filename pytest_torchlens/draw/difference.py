"""Two forward passes in one picture."""

from __future__ import annotations

import dataclasses
from typing import Final

from pytest_torchlens.draw.scene import Flow
from pytest_torchlens.draw.scene import Mark
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.records import AlignedEdge
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import Pair
from pytest_torchlens.records import align

_MARKS: Final[dict[str, Mark]] = {"same": "", "added": "added", "removed": "removed", "changed": "changed"}


def difference(before: HistoryRecord, after: HistoryRecord) -> Scene:
    """Return a scene of both passes: what only one has, and what differs, is marked."""
    alignment = align(before.operations, after.operations)
    operations = tuple(_renamed(pair.operation) if pair.second is None else pair.second for pair in alignment.pairs)
    labels = [op.label for op in operations]
    return Scene(
        dataclasses.replace(after, operations=operations, modules=_modules(before, after)),
        operations,
        tuple(
            Flow(labels[edge.parent], labels[edge.child], edge.argument, edge.through_write, _mark(edge))
            for edge in alignment.edges
        ),
        {label: _MARKS[pair.kind] for label, pair in zip(labels, alignment.pairs, strict=True)},
        {label: pair.changes for label, pair in zip(labels, alignment.pairs, strict=True)},
        (_summary(before, after, alignment.pairs),),
    )


def _renamed(op: Operation) -> Operation:
    """Return an operation that is gone under labels that no other has."""
    return dataclasses.replace(
        op, layer_label=f"old {op.layer_label}", layer_label_w_pass=f"old {op.layer_label_w_pass}"
    )


def _modules(before: HistoryRecord, after: HistoryRecord) -> tuple[ModuleRecord, ...]:
    known = {module.address for module in after.modules}
    return (*after.modules, *(module for module in before.modules if module.address not in known))


def _mark(edge: AlignedEdge) -> Mark:
    if edge.in_first and edge.in_second:
        return ""
    return "added" if edge.in_second else "removed"


def _summary(before: HistoryRecord, after: HistoryRecord, pairs: tuple[Pair, ...]) -> str:
    kinds = [pair.kind for pair in pairs]
    counts = {kind: kinds.count(kind) for kind in ("added", "removed", "changed", "same")}
    said = "+ {added:,} added, − {removed:,} removed, ~ {changed:,} changed, {same:,} the same".format(**counts)
    return said if before.model_name == after.model_name else f"compared with {before.model_name}: {said}"
