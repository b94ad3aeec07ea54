"""The differences between the graphs of two forward passes of one model."""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pytest_torchlens.records import AlignedEdge
from pytest_torchlens.records import Operation
from pytest_torchlens.records import Pair
from pytest_torchlens.records import address_of
from pytest_torchlens.records import align


def graph_differences(
    before: Sequence[Operation], after: Sequence[Operation], addresses: Container[str]
) -> tuple[str, ...]:
    """Return a sentence for each run of operations that only one graph has, and for each that reads other operations.

    Shapes and values are not compared.  `addresses` are the addresses of the model's modules.
    """
    alignment = align(before, after)
    same = [ran_in_both(pair, addresses) for pair in alignment.pairs]
    changed = _changed_edges(alignment.edges, same)
    sentences: list[str] = []
    for is_same, indices in groupby(range(len(same)), same.__getitem__):
        pairs = [(alignment.pairs[index], index) for index in indices]
        if not is_same:
            sentences.append(_sentence([pair for pair, _ in pairs]))
        sentences += [
            _edge_sentence(alignment.pairs, pair, changed[index]) for pair, index in pairs if index in changed
        ]
    return tuple(sentences)


def ran_in_both(pair: Pair, addresses: Container[str]) -> bool:
    """Return whether both passes ran the operation: one function, on the same parameters, in the same module."""
    if pair.first is None or pair.second is None:
        return False
    return _signature(pair.first, addresses) == _signature(pair.second, addresses)


def _signature(op: Operation, addresses: Container[str]) -> tuple[Any, ...]:
    around = tuple(address_of(call, addresses) for call in op.containing_module_origin_nested)
    return op.layer_type, op.func_applied_name, around, op.parent_param_addresses, op.buffer_address


Edges = list[AlignedEdge]


def _changed_edges(edges: Sequence[AlignedEdge], same: Sequence[bool]) -> dict[int, Edges]:
    """Return, by index of the child, the edges that only one pass has, between operations that both ran.

    An argument is left out if one of its edges comes from an operation that only one pass ran; its sentence says so.
    """
    alone: dict[tuple[int, str], Edges] = {}
    for edge in edges:
        if same[edge.child] and not (edge.in_first and edge.in_second):
            alone.setdefault((edge.child, edge.argument), []).append(edge)
    by_child: dict[int, Edges] = {}
    for (child, _), changed in alone.items():
        if all(same[edge.parent] for edge in changed):
            by_child.setdefault(child, []).extend(changed)
    return by_child


def _sentence(pairs: list[Pair]) -> str:
    removed = [pair.first for pair in pairs if pair.first is not None]
    added = [pair.second for pair in pairs if pair.second is not None]
    if not removed:
        return f"{_labels(added)} came in"
    if not added:
        return f"{_labels(removed)} did not run"
    return f"{_labels(added)} ran in place of {_labels(removed)}"


def _edge_sentence(pairs: Sequence[Pair], pair: Pair, edges: Edges) -> str:
    reader = pair.operation.label
    added = _labels(_distinct(pairs[edge.parent].second for edge in edges if edge.in_second))
    removed = _labels(_distinct(pairs[edge.parent].first for edge in edges if edge.in_first))
    if not removed:
        return f"{reader} read {added}, too"
    return f"{reader} read {added} in place of {removed}" if added else f"{reader} did not read {removed}"


def _distinct(operations: Iterable[Operation | None]) -> list[Operation]:
    return list({op.label: op for op in operations if op is not None}.values())


_MANY = 3


def _labels(operations: list[Operation]) -> str:
    if len(operations) > _MANY:
        return f"{operations[0].label} to {operations[-1].label} ({len(operations)} operations)"
    return ", ".join(op.label for op in operations)
