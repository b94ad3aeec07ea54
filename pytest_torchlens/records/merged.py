"""Two forward passes of one model as one graph, in which each took its own branches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from pytest_torchlens.records.address import address_of
from pytest_torchlens.records.history import HistoryRecord
from pytest_torchlens.records.operation import Edge
from pytest_torchlens.records.operation import Operation


@dataclass(frozen=True)
class MergedOperation:
    """An operation that one pass or both ran.

    Attributes
    ----------
    first, second
        Its label in each pass; ``""`` in the one that did not run it.
    operation
        Its record, from the first pass that ran it.
    edges
        Edges of both, each once: the parent as its number in `MergedGraph.operations`, and an `Edge` without labels.
    """

    first: str
    second: str
    operation: Operation
    edges: tuple[tuple[int, Edge], ...] = ()

    @property
    def in_both(self) -> bool:
        """Whether both passes ran it."""
        return bool(self.first and self.second)


_NAMED = 5
"""Labels in a graph's text, of each pass."""


@dataclass(frozen=True, repr=False)
class MergedGraph:
    """The operations of two passes in execution order; those of the second alone stand where they ran."""

    operations: tuple[MergedOperation, ...]

    def __repr__(self) -> str:
        """Return how much of it each pass ran, with the first labels of what one alone did."""
        both = sum(op.in_both for op in self.operations)
        alone = f"{_some(self.only_first)} by the first alone, {_some(self.only_second)} by the second alone"
        return f"<MergedGraph: {len(self.operations)} operations, {both} run by both passes, {alone}>"

    @property
    def only_first(self) -> tuple[str, ...]:
        """Labels of what the first pass alone ran."""
        return tuple(op.first for op in self.operations if not op.second)

    @property
    def only_second(self) -> tuple[str, ...]:
        """Labels of what the second pass alone ran."""
        return tuple(op.second for op in self.operations if not op.first)


def _some(labels: tuple[str, ...]) -> str:
    """Return a number, with the first labels."""
    named = ", ".join(labels[:_NAMED]) + (", …" if len(labels) > _NAMED else "")
    return f"{len(labels)} ({named})" if labels else "0"


def merge(first: HistoryRecord, second: HistoryRecord) -> MergedGraph:
    """Return two passes of one model as one graph.

    Operations are the same where the same line of code ran the same function in the same module for the same time.

    Raises
    ------
    ValueError
        If the two are no passes of one model.
    """
    if first.model_name != second.model_name or _addresses(first) != _addresses(second):
        raise ValueError(f"cannot merge passes of different models: {first.model_name} and {second.model_name}")
    ours, theirs = _keyed(first), _keyed(second)
    order = _interleaved(list(ours), list(theirs))
    place = {key: number for number, key in enumerate(order)}
    edges: dict[Hashable, dict[tuple[int, Edge], None]] = {key: {} for key in order}
    for side in (ours, theirs):
        numbers = {op.label: place[key] for key, op in side.items()}
        for key, op in side.items():
            for edge in op.edges:
                plain = Edge("", edge.argument, edge.through_write)
                edges[key][numbers[edge.parent], plain] = None
    return MergedGraph(
        tuple(
            MergedOperation(
                ours[key].label if key in ours else "",
                theirs[key].label if key in theirs else "",
                ours[key] if key in ours else theirs[key],
                tuple(edges[key]),
            )
            for key in order
        )
    )


def _addresses(history: HistoryRecord) -> set[str]:
    return {module.address for module in history.modules}


def _keyed(history: HistoryRecord) -> dict[Hashable, Operation]:
    """Return the operations by what is the same in another pass: function, module, line, and for how many-th time."""
    known = _addresses(history)
    times: Counter[Hashable] = Counter()
    found: dict[Hashable, Operation] = {}
    for op in history.operations:
        around = op.containing_module_origin_nested
        where = (op.layer_type, op.source_line, op.iterable_output_index, op.buffer_address)
        key: Hashable = (where, tuple(address_of(call, known) for call in around))
        times[key] += 1
        found[key, times[key]] = op
    return found


def _interleaved(ours: list[Hashable], theirs: list[Hashable]) -> list[Hashable]:
    """Return all keys: ours in order, theirs after the last of ours that came before them."""
    known = set(ours)
    after: dict[Hashable, list[Hashable]] = {}
    last: Hashable = None
    for key in theirs:
        if key in known:
            last = key
        else:
            after.setdefault(last, []).append(key)
    order = list(after.get(None, []))
    for key in ours:
        order += [key, *after.get(key, [])]
    return order
