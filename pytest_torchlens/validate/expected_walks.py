"""Derives by reachability the relatives, ancestors and distances that a history must report."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from operator import attrgetter
from operator import itemgetter
from typing import Any

from pytest_torchlens.history import LoggedOperation
from pytest_torchlens.validate.expected_graph import ExpectedOperation

_Neighbours = Callable[[ExpectedOperation], list[ExpectedOperation]]
_Column = tuple[str, list[Any]]
"""The name of a property, and its value for each of some operations."""


def _spans(order: Iterable[ExpectedOperation], before: _Neighbours, start: str) -> dict[int, tuple[int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    for one in order:
        near = [spans[id(other)] for other in before(one) if id(other) in spans]
        if one.kind == start:
            spans[id(one)] = (0, 0)
        elif len(near) == 1:
            spans[id(one)] = near[0][0] + 1, near[0][1] + 1
        elif near:
            spans[id(one)] = min([least for least, _ in near]) + 1, max([most for _, most in near]) + 1
    return spans


def _parents(one: ExpectedOperation) -> list[ExpectedOperation]:
    return [parent for parent, _, _ in one.parents]


def _children(one: ExpectedOperation) -> list[ExpectedOperation]:
    return one.children


def walk_faults(
    operations: list[ExpectedOperation], given: list[LoggedOperation], most: int
) -> Iterator[tuple[ExpectedOperation, str]]:
    """Yield where distances differ, of all operations; and where relatives do, of at most some of them.

    The answer to who the ancestors of one operation are is as long as the graph, so `most` steps are made.
    """
    every = max(1, len(operations) ** 2 // most)
    some, find = operations[::every], _Relatives(operations)
    relatives = list(map(find.of, some))
    columns = [(name, [answers[name] for answers in relatives]) for name in (relatives or [{}])[0]]
    faults = list(_differences(_distances(operations), given))
    faults += [(place * every, fault) for place, fault in _differences(columns, given[::every])]
    yield from ((operations[place], fault) for place, fault in sorted(faults, key=itemgetter(0)))


def _distances(operations: list[ExpectedOperation]) -> Iterator[_Column]:
    """Yield the fewest and the most steps from an input, and to an output."""
    down, up = _spans(operations, _parents, "input"), _spans(reversed(operations), _children, "output")
    for where, spans in (("from_input", down), ("from_output", up)):
        found = [spans.get(id(one), (None, None)) for one in operations]
        yield f"min_distance_{where}", [least for least, _ in found]
        yield f"max_distance_{where}", [most for _, most in found]


def _differences(columns: Iterable[_Column], given: list[LoggedOperation]) -> Iterator[tuple[int, str]]:
    """Yield the place of each operation that answers otherwise, and what it answers."""
    for name, expected in columns:
        answers = list(map(attrgetter(name), given))
        if answers != expected:
            for place, (answer, right) in enumerate(zip(answers, expected, strict=True)):
                if answer != right:
                    yield place, f"{name} is {answer!r:.100}, the edges give {right!r:.100}"


class _Relatives:
    """The operations that each one is related to; those that it reaches as the places of origins and ends."""

    def __init__(self, operations: list[ExpectedOperation]) -> None:
        self._label = [one.label for one in operations]
        self._made_inside = {place for place, one in enumerate(operations) if _is_made_inside(one)}
        self._place = {id(one): number for number, one in enumerate(operations)}
        self._origins = self._reachable(operations, _parents, lambda one: not one.parents)
        self._ends = self._reachable(reversed(operations), _children, lambda one: one.kind == "output")

    def _reachable(
        self, order: Iterable[ExpectedOperation], before: _Neighbours, counts: Callable[[ExpectedOperation], bool]
    ) -> dict[int, frozenset[int]]:
        found: dict[int, frozenset[int]] = {}
        for one in order:
            near = before(one)
            own = [self._place[id(other)] for other in near if counts(other)]
            if len(near) == 1 and not own:
                found[id(one)] = found[id(near[0])]
            else:
                parts = {found[id(other)] for other in near}
                found[id(one)] = next(iter(parts)) if len(parts) == 1 and not own else frozenset(own).union(*parts)
        return found

    def of(self, one: ExpectedOperation) -> dict[str, Any]:
        """Return the labels of all relatives, by the names of the properties."""
        origins, near = self._origins[id(one)], {id(parent): parent for parent in _parents(one)}.values()
        return {
            "sibling_layers": self._others(one, [child for parent in near for child in parent.children]),
            "spouse_layers": self._others(one, [parent for child in one.children for parent in _parents(child)]),
            "orig_ancestors": self._labels(origins),
            "output_descendants": self._labels(self._ends[id(one)]),
            "internally_initialized_parents": tuple([parent.label for parent in near if _is_made_inside(parent)]),
            "internally_initialized_ancestors": self._labels(origins & self._made_inside),
        }

    def _others(self, one: ExpectedOperation, found: list[ExpectedOperation]) -> tuple[str, ...]:
        return self._labels({self._place[id(other)] for other in found} - {self._place[id(one)]})

    def _labels(self, places: Collection[int]) -> tuple[str, ...]:
        return tuple([self._label[place] for place in sorted(places)])


def _is_made_inside(one: ExpectedOperation) -> bool:
    return one.kind == "operation" and not one.parents and not one.parameters
