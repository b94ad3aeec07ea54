"""Derives by reachability the relatives, ancestors and distances that a history must report."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from operator import attrgetter
from operator import itemgetter
from typing import Any

from pytest_torchlens.history import LoggedOperation
from pytest_torchlens.validate.expected_graph import ExpectedOperation

_Places = list[list[int]]
"""The places of each operation's neighbours."""
_Column = tuple[str, list[Any]]
"""The name of a property, and its value for each of some operations."""


def walk_faults(
    operations: list[ExpectedOperation], given: list[LoggedOperation], most: int
) -> Iterator[tuple[ExpectedOperation, str]]:
    """Yield where distances differ, of all operations; and where relatives do, of at most some of them.

    The answer to who the ancestors of one operation are is as long as the graph, so `most` steps are made.
    """
    every = max(1, len(operations) ** 2 // most)
    graph = _Graph(operations)
    relatives = [graph.relatives(place) for place in range(0, len(operations), every)]
    columns = [(name, [answers[name] for answers in relatives]) for name in (relatives or [{}])[0]]
    faults = list(_differences(graph.distances(), given))
    faults += [(place * every, fault) for place, fault in _differences(columns, given[::every])]
    yield from ((operations[place], fault) for place, fault in sorted(faults, key=itemgetter(0)))


def _differences(columns: Iterable[_Column], given: list[LoggedOperation]) -> Iterator[tuple[int, str]]:
    """Yield the place of each operation that answers otherwise, and what it answers."""
    for name, expected in columns:
        answers = list(map(attrgetter(name), given))
        if answers != expected:
            for place, (answer, right) in enumerate(zip(answers, expected, strict=True)):
                if answer != right:
                    yield place, f"{name} is {answer!r:.100}, the edges give {right!r:.100}"


class _Graph:
    """The operations by place, and the places that each reaches."""

    def __init__(self, operations: list[ExpectedOperation]) -> None:
        place = {id(one): at for at, one in enumerate(operations)}
        self._label = [one.label for one in operations]
        self._kinds = [one.kind for one in operations]
        self._parents: _Places = [[place[id(parent)] for parent, _, _ in one.parents] for one in operations]
        self._children: _Places = [[place[id(child)] for child in one.children] for one in operations]
        self._onward = range(len(operations))
        self._made_inside = {at for at, one in enumerate(operations) if _is_made_inside(one)}
        begins = {at for at, parents in enumerate(self._parents) if not parents}
        self._origins = _reachable(self._onward, self._parents, begins)
        self._ends = _reachable(self._onward[::-1], self._children, self._of_kind("output"))
        self._labels_of: dict[frozenset[int], tuple[str, ...]] = {}

    def _of_kind(self, kind: str) -> set[int]:
        return {at for at, one in enumerate(self._kinds) if one == kind}

    def distances(self) -> Iterator[_Column]:
        """Yield the fewest and the most steps from an input, and to an output."""
        down = _spans(self._onward, self._parents, self._of_kind("input"))
        up = _spans(self._onward[::-1], self._children, self._of_kind("output"))
        for where, spans in (("from_input", down), ("from_output", up)):
            yield f"min_distance_{where}", [span and span[0] for span in spans]
            yield f"max_distance_{where}", [span and span[1] for span in spans]

    def relatives(self, place: int) -> dict[str, Any]:
        """Return the labels of all relatives of one operation, by the names of the properties."""
        parents, children, origins = self._parents, self._children, self._origins[place]
        near = dict.fromkeys(parents[place])
        return {
            "sibling_layers": self._labels({child for parent in near for child in children[parent]} - {place}),
            "spouse_layers": self._labels({parent for child in children[place] for parent in parents[child]} - {place}),
            "orig_ancestors": self._labels(origins),
            "output_descendants": self._labels(self._ends[place]),
            "internally_initialized_parents": tuple([self._label[at] for at in near if at in self._made_inside]),
            "internally_initialized_ancestors": self._labels(origins & self._made_inside),
        }

    def _labels(self, places: Collection[int]) -> tuple[str, ...]:
        """Return the labels at some places, in order; neighbours often reach the same ones."""
        key = frozenset(places)
        labels = self._labels_of.get(key)
        if labels is None:
            labels = self._labels_of[key] = tuple([self._label[place] for place in sorted(key)])
        return labels


def _spans(order: Iterable[int], before: _Places, starts: set[int]) -> list[tuple[int, int] | None]:
    """Return for each place the fewest and the most steps from one of `starts`; None if there is no way."""
    spans: list[tuple[int, int] | None] = [None] * len(before)
    for place in order:
        near = [span for span in map(spans.__getitem__, before[place]) if span is not None]
        if place in starts:
            spans[place] = (0, 0)
        elif len(near) == 1:
            spans[place] = near[0][0] + 1, near[0][1] + 1
        elif near:
            spans[place] = min([least for least, _ in near]) + 1, max([most for _, most in near]) + 1
    return spans


def _reachable(order: Iterable[int], before: _Places, wanted: set[int]) -> list[frozenset[int]]:
    """Return for each place those of the `wanted` ones that lead to it."""
    found: list[frozenset[int]] = [frozenset()] * len(before)
    for place in order:
        near = before[place]
        own = wanted.intersection(near)
        if len(near) == 1 and not own:
            found[place] = found[near[0]]
        else:
            parts = {found[other] for other in near}
            found[place] = next(iter(parts)) if len(parts) == 1 and not own else frozenset(own).union(*parts)
    return found


def _is_made_inside(one: ExpectedOperation) -> bool:
    return one.kind == "operation" and not one.parents and not one.parameters
