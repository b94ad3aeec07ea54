"""Merges passes into one graph: two forward passes (`merge`), or all passes of each layer (`roll_edges`)."""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Hashable
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_torchlens.records.alignment import in_step
from pytest_torchlens.records.history import HistoryRecord
from pytest_torchlens.records.names import address_of
from pytest_torchlens.records.operation import Edge
from pytest_torchlens.records.operation import Operation


@dataclass(frozen=True)
class MergedOperation:
    """An operation that one pass or both ran.

    Attributes
    ----------
    first, second
        Its label in each pass; ``""`` if that pass did not run it.
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
"""Labels of each pass that a graph's text lists."""


@dataclass(frozen=True, repr=False)
class MergedGraph:
    """The operations of two passes in execution order; those that only the second ran stand where they ran."""

    operations: tuple[MergedOperation, ...]

    def __repr__(self) -> str:
        """Return how much each pass ran, with the first labels of what only one ran."""
        both = sum(op.in_both for op in self.operations)
        alone = f"{_some(self.only_first)} by the first alone, {_some(self.only_second)} by the second alone"
        return f"<MergedGraph: {len(self.operations)} operations, {both} run by both passes, {alone}>"

    @property
    def only_first(self) -> tuple[str, ...]:
        """Labels of the operations that only the first pass ran."""
        return tuple(op.first for op in self.operations if not op.second)

    @property
    def only_second(self) -> tuple[str, ...]:
        """Labels of the operations that only the second pass ran."""
        return tuple(op.second for op in self.operations if not op.first)


def _some(labels: tuple[str, ...]) -> str:
    """Return a number, with the first labels."""
    named = ", ".join(labels[:_NAMED]) + (", …" if len(labels) > _NAMED else "")
    return f"{len(labels)} ({named})" if labels else "0"


_Pair = tuple[Operation | None, Operation | None]


def merge(first: HistoryRecord, second: HistoryRecord) -> MergedGraph:
    """Return two passes of one model as one graph.

    Two operations are the same if the same line of code ran the same function in the same module and loop pass.

    Raises
    ------
    ValueError
        If the two are not passes of one model.
    """
    if why := "".join(_unlike(first, second)[:1]):
        raise ValueError(f"expected two passes of one model, got {why}")
    pairs = _with_sources(_pairs(first, second), _sources(first, second))
    sides = zip(*pairs, strict=True)
    places = [{op.label: number for number, op in enumerate(side) if op is not None} for side in sides]
    return MergedGraph(tuple(_merged_operation(pair, places) for pair in pairs))


def _merged_operation(pair: _Pair, places: list[dict[str, int]]) -> MergedOperation:
    first, second = pair
    edges = [
        (numbers[edge.parent], Edge("", edge.argument, edge.through_write))
        for op, numbers in zip(pair, places, strict=True)
        for edge in (op.edges if op is not None else ())
    ]
    operation = first or second
    assert operation is not None  # noqa: S101 - a pair has at least one
    return MergedOperation(
        first.label if first else "", second.label if second else "", operation, tuple(dict.fromkeys(edges))
    )


def _unlike(first: HistoryRecord, second: HistoryRecord) -> list[str]:
    """Return the differences of the two models in modules, parameters and their shapes."""
    names = f"{first.model_name} and {second.model_name}"
    if first.model_name != second.model_name or _addresses(first) != _addresses(second):
        return [names]
    ours, theirs = _parts(first), _parts(second)
    both = [name for name in ours if name in theirs]
    return [f"{names}, with {ours[x]} and {theirs[x]} at {x!r}" for x in both if ours[x] != theirs[x]]


def _parts(history: HistoryRecord) -> dict[str, str]:
    """Return a description of each module and used parameter, by address."""
    kinds = {
        module: module.module_type.removeprefix("Lazy") for module in history.modules
    }  # as named after a first pass
    modules = {module.address: f"{kind} of {module.num_params} parameters" for module, kind in kinds.items()}
    shapes = (zip(op.parent_param_addresses, op.parent_param_shapes, strict=True) for op in history.operations)
    return {name: str(shape) for shape_of in shapes for name, shape in shape_of} | modules


def _addresses(history: HistoryRecord) -> set[str]:
    return {module.address for module in history.modules}


def _pairs(first: HistoryRecord, second: HistoryRecord) -> list[_Pair]:
    """Return the operations of both passes in one order, without sources."""
    sides = [[op for op in history.operations if not _is_source(op)] for history in (first, second)]

    def is_loop(side: int, earlier: int, later: int) -> bool:
        return sides[side][earlier].layer_label == sides[side][later].layer_label

    ours, theirs = sides
    known = _addresses(first)
    our_keys, their_keys = ([_key(op, known) for op in side] for side in sides)
    return [
        (ours[one] if one >= 0 else None, theirs[other] if other >= 0 else None)
        for one, other in in_step(our_keys, their_keys, is_loop)
    ]


def _key(op: Operation, known: set[str]) -> Hashable:
    """Return a key that is equal for the same operation in another pass; `known` has the modules' addresses."""
    around = tuple(address_of(call, known) for call in op.containing_module_origin_nested)
    return op.layer_type, op.source_line, op.iterable_output_index, op.buffer_address, op.constant_origin, around


def _is_source(op: Operation) -> bool:
    return op.is_input_layer or op.is_buffer_layer or op.is_constant


def _sources(first: HistoryRecord, second: HistoryRecord) -> list[_Pair]:
    """Return inputs, buffers and constants of both, the n-th of a kind with the n-th."""
    found: tuple[dict[Hashable, Operation], ...] = ({}, {})
    for history, sources in zip((first, second), found, strict=True):
        times: Counter[Hashable] = Counter()
        for op in filter(_is_source, history.operations):
            key = _key(op, set())
            times[key] += 1
            sources[key, times[key]] = op
    ours, theirs = found
    return [(ours.get(key), theirs.get(key)) for key in ours | theirs]


def _with_sources(pairs: list[_Pair], sources: list[_Pair]) -> list[_Pair]:
    """Return the pairs with the inputs first, and each other source before its first reader."""
    by_label = [{op.label: pair for pair in sources if (op := pair[side]) is not None} for side in (0, 1)]
    order = [pair for pair in sources if any(op is not None and op.is_input_layer for op in pair)]
    known = set(map(id, order))
    for pair in pairs:
        for op, read in zip(pair, by_label, strict=True):
            for label in (edge.parent for edge in op.edges) if op is not None else ():
                source = read.get(label)
                if source is not None and id(source) not in known:
                    known.add(id(source))
                    order.append(source)
        order.append(pair)
    return order


@dataclass(frozen=True)
class RolledEdge:
    """Data that flow from one layer into an argument of another.

    Attributes
    ----------
    parent, child
        Labels of the layers.
    argument
        As in `Edge`.
    through_write
        As in `Edge`.
    passes
        Pairs of the parent's pass and the child's pass, in the order of the child's passes.
    out_label
        The parent's passes that send data along this edge: ``"Out 1-2"``; ``""`` if all do.
    in_label
        The child's passes that receive data along this edge: ``"In 1"``; ``""`` if all do.
    """

    parent: str
    child: str
    argument: str
    through_write: bool
    passes: tuple[tuple[int, int], ...]
    out_label: str = ""
    in_label: str = ""


def roll_edges(operations: Iterable[Operation]) -> tuple[RolledEdge, ...]:
    """Return the edges between layers in the order in which they first carry data."""
    operations = list(operations)
    by_label = {key: op for op in operations for key in (op.layer_label, op.layer_label_w_pass)}
    carried: dict[tuple[str, str, str, bool], list[tuple[int, int]]] = defaultdict(list)
    for child in operations:
        for edge in child.edges:
            parent = by_label[edge.parent]
            key = (parent.layer_label, child.layer_label, edge.argument, edge.through_write)
            carried[key].append((parent.pass_num, child.pass_num))
    return tuple(
        RolledEdge(
            *key,
            passes=tuple(passes),
            out_label=pass_label("Out", [sent for sent, _ in passes], by_label[key[0]].layer_passes_total),
            in_label=pass_label("In", [got for _, got in passes], by_label[key[1]].layer_passes_total),
        )
        for key, passes in carried.items()
    )


def pass_label(word: str, passes: Iterable[int], total: int) -> str:
    """Return `passes` as a label: ``"Out 1-2"``; ``""`` for all of `total`."""
    distinct = sorted(set(passes))
    return "" if len(distinct) == total else f"{word} {ranges(distinct)}"


def ranges(numbers: Iterable[int]) -> str:
    """Return rising numbers as text, neighbours as a range: ``"1-3, 5"``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
