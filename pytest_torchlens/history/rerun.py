"""Where the graph of another forward pass of the same model differs."""

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
    """Return a sentence for each stretch of operations that is in one graph alone, and for each that reads others.

    Shapes and values do not count; `addresses` are those of the model's modules.
    """
    alignment = align(before, after)
    same = [_is_same(pair, addresses) for pair in alignment.pairs]
    read = _changed_edges(alignment.edges, same)
    sentences: list[str] = []
    for is_same, places in groupby(range(len(same)), same.__getitem__):
        pairs = [(alignment.pairs[place], place) for place in places]
        if not is_same:
            sentences.append(_sentence([pair for pair, _ in pairs]))
        sentences += [_reads(alignment.pairs, pair, read[place]) for pair, place in pairs if place in read]
    return tuple(sentences)


def _is_same(pair: Pair, addresses: Container[str]) -> bool:
    """Return whether both passes ran it: the same function on the same parameters in the same module."""
    if pair.first is None or pair.second is None:
        return False
    return _what(pair.first, addresses) == _what(pair.second, addresses)


def _what(op: Operation, addresses: Container[str]) -> tuple[Any, ...]:
    around = tuple(address_of(call, addresses) for call in op.containing_module_origin_nested)
    return op.layer_type, op.func_applied_name, around, op.parent_param_addresses, op.buffer_address


Edges = list[AlignedEdge]


def _changed_edges(edges: Sequence[AlignedEdge], same: Sequence[bool]) -> dict[int, Edges]:
    """Return, by place, the edges in one pass alone of what both ran.

    An argument that one pass gave to, or took from, what it alone ran is no difference of its own.
    """
    alone: dict[tuple[int, str], Edges] = {}
    for edge in edges:
        if same[edge.child] and not (edge.in_first and edge.in_second):
            alone.setdefault((edge.child, edge.argument), []).append(edge)
    found: dict[int, Edges] = {}
    for (child, _), changed in alone.items():
        if all(same[edge.parent] for edge in changed):
            found.setdefault(child, []).extend(changed)
    return found


def _sentence(pairs: list[Pair]) -> str:
    gone = [pair.first for pair in pairs if pair.first is not None]
    new = [pair.second for pair in pairs if pair.second is not None]
    if not gone:
        return f"{_labels(new)} came in"
    if not new:
        return f"{_labels(gone)} did not run"
    return f"{_labels(new)} ran in place of {_labels(gone)}"


def _reads(pairs: Sequence[Pair], pair: Pair, edges: Edges) -> str:
    reader = pair.operation.label
    new = _labels(_each_once(pairs[edge.parent].second for edge in edges if edge.in_second))
    gone = _labels(_each_once(pairs[edge.parent].first for edge in edges if edge.in_first))
    if not gone:
        return f"{reader} read {new}, too"
    return f"{reader} read {new} in place of {gone}" if new else f"{reader} did not read {gone}"


def _each_once(operations: Iterable[Operation | None]) -> list[Operation]:
    return list({op.label: op for op in operations if op is not None}.values())


_MANY = 3


def _labels(operations: list[Operation]) -> str:
    if len(operations) > _MANY:
        return f"{operations[0].label} to {operations[-1].label} ({len(operations)} operations)"
    return ", ".join(op.label for op in operations)
