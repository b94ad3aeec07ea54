"""Derives by reachability what a history says of ways through its graph: relatives, ancestors, distances."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from pytest_torchlens.history import LoggedOperation
from pytest_torchlens.validate.expected_graph import ExpectedOperation

Span = tuple[int | None, int | None]
_Neighbours = Callable[[ExpectedOperation], Iterable[ExpectedOperation]]


def distances(operations: list[ExpectedOperation]) -> dict[int, tuple[Span, Span]]:
    """Return by the id of each operation the fewest and the most steps from an input, and to an output."""
    down = _spans(operations, _parents, "input")
    up = _spans(reversed(operations), _children, "output")
    return {id(one): (down.get(id(one), (None, None)), up.get(id(one), (None, None))) for one in operations}


def _spans(order: Iterable[ExpectedOperation], before: _Neighbours, start: str) -> dict[int, tuple[int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    for one in order:
        near = [spans[id(other)] for other in before(one) if id(other) in spans]
        if one.kind == start:
            spans[id(one)] = (0, 0)
        elif near:
            spans[id(one)] = min(least for least, _ in near) + 1, max(most for _, most in near) + 1
    return spans


def _parents(one: ExpectedOperation) -> Iterator[ExpectedOperation]:
    return (parent for parent, _, _ in one.parents)


def _children(one: ExpectedOperation) -> list[ExpectedOperation]:
    return one.children


def walk_faults(
    operations: list[ExpectedOperation], given: list[LoggedOperation], most: int
) -> Iterator[tuple[ExpectedOperation, str]]:
    """Yield where distances differ, of all operations; and where relatives do, of at most some of them.

    The answer to who the ancestors of one operation are is as long as the graph, so `most` steps are made.
    """
    spans = distances(operations)
    every = max(1, len(operations) ** 2 // most)
    place = {id(one): number for number, one in enumerate(operations)}
    for number, (one, record) in enumerate(zip(operations, given, strict=True)):
        (least_in, most_in), (least_out, most_out) = spans[id(one)]
        expected: dict[str, Any] = {
            "min_distance_from_input": least_in,
            "max_distance_from_input": most_in,
            "min_distance_from_output": least_out,
            "max_distance_from_output": most_out,
        }
        if number % every == 0:
            expected |= _relatives(one, place)
        for name, value in expected.items():
            if getattr(record, name) != value:
                yield one, f"{name} is {getattr(record, name)!r:.100}, the edges give {value!r:.100}"


def _relatives(one: ExpectedOperation, place: dict[int, int]) -> dict[str, Any]:
    def labels(found: Iterable[ExpectedOperation]) -> tuple[str, ...]:
        distinct = {id(other): other for other in found if other is not one}
        return tuple([distinct[key].label for key in sorted(distinct, key=place.__getitem__)])

    above = _reached(one, _parents)
    origins = [other for other in above if not other.parents]
    made = labels(other for other in origins if _is_made_inside(other))
    return {
        "sibling_layers": labels(child for parent in _parents(one) for child in parent.children),
        "spouse_layers": labels(parent for child in one.children for parent in _parents(child)),
        "orig_ancestors": labels(origins),
        "output_descendants": labels(other for other in _reached(one, _children) if other.kind == "output"),
        "internally_initialized_parents": tuple(
            dict.fromkeys([parent.label for parent in _parents(one) if _is_made_inside(parent)])
        ),
        "internally_initialized_ancestors": made,
    }


def _is_made_inside(one: ExpectedOperation) -> bool:
    return one.kind == "operation" and not one.parents and not one.parameters


def _reached(one: ExpectedOperation, neighbours: _Neighbours) -> list[ExpectedOperation]:
    found: dict[int, ExpectedOperation] = {}
    waiting = [one]
    while waiting:
        for other in neighbours(waiting.pop()):
            if id(other) not in found:
                found[id(other)] = other
                waiting.append(other)
    return list(found.values())
