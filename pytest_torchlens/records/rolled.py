"""Edges of the rolled graph, where all passes of a layer are one node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_torchlens.records.operation import Operation


@dataclass(frozen=True)
class RolledEdge:
    """Data that flow from one layer into another by one argument.

    Attributes
    ----------
    parent, child
        Labels of the layers.
    argument
        Where it goes in, as in `Edge`.
    through_write
        As in `Edge`.
    passes
        Pass of the parent and pass of the child, for each time; in the order of the child's passes.
    out_label
        The parent's passes that send something along this edge: ``"Out 1-2"``; ``""`` where all do.
    in_label
        The child's passes that get something along this edge: ``"In 1"``; ``""`` where all do.
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
    """Return which of `total` passes are meant: ``"Out 1-2"``; ``""`` for all."""
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
