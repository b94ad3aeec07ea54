"""Operations that only some passes of a loop run: a branch that is not always taken, a step that is sometimes skipped.

Operations on both sides of such a detour count as adjacent.  So passes with it and passes without it are one loop.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop
from heapq import heappush

from pytest_torchlens.history.layers.signatures import Link
from pytest_torchlens.history.layers.signatures import Operations

_MOST_SOURCES = 4
"""How many operations before a detour are kept."""


class Detours:
    """The detours, and which operations are adjacent across them.

    An operation is a detour if all of this holds:

    * its place in the code runs no other function;
    * it runs between two visits of another place, which is visited more often than its own, works on what descends from
      an input, and is not fed by another layer each time;
    * all that it reads comes from before the loop, from places visited more often, or from detours.

    A place is the chain of code positions from the model's forward down; only a loop or a recursive function visits
    one twice.

    Attributes
    ----------
    is_detour
        Whether an operation is a detour, by its number.
    always_new
        Whether an operation has parameters, and its place is visited once or runs other functions or modules as well.
    parents, children
        Argument place and number of each neighbour across detours.
    any
        Whether there is any detour.
    """

    def __init__(self, ops: Operations) -> None:
        visits = self._visits = Counter(ops.place)
        self.always_new = [
            weights and (visits[place] == 1 or place in ops.shared_places)
            for weights, place in zip(ops.weights, ops.place, strict=True)
        ]
        self.is_detour = self._find(ops)
        self.any = any(self.is_detour)
        self.parents: list[list[Link] | tuple[()]] = [()] * len(ops)
        self.children: list[list[Link] | tuple[()]] = [()] * len(ops)
        if self.any:
            self._connect(ops)

    def _find(self, ops: Operations) -> list[bool]:
        visits, places, shared = self._visits, ops.place, ops.shared_places
        inside = self._inside(ops)
        flags: list[bool] = []
        for number, place in enumerate(places):
            own_visits = visits[place]
            flags.append(
                inside[number]
                and place not in shared
                and not self.always_new[number]
                and all(
                    flags[parent]
                    or not inside[parent]
                    or (visits[places[parent]] > own_visits and places[parent] not in shared)
                    for _, parent in ops.parents[number]
                )
            )
        return flags

    def _inside(self, ops: Operations) -> list[bool]:
        """Return for each operation whether it runs between two visits of a place that is visited more often."""
        visits, runs = self._visits, self._runs(ops)
        first: dict[tuple[int, int], int] = {}
        last = {run: number for number, run in enumerate(runs) if ops.from_input[number] and visits[run[0]] > 1}
        spans: list[tuple[int, int]] = []
        inside = []
        for number, run in enumerate(runs):
            own_visits = visits[run[0]]
            if run in last and first.setdefault(run, number) == number:
                heappush(spans, (-own_visits, last[run]))
            while spans and spans[0][1] <= number:
                heappop(spans)
            inside.append(bool(spans) and -spans[0][0] > own_visits)
        return inside

    def _runs(self, ops: Operations) -> list[tuple[int, int]]:
        """Return for each operation its place, and the number of the run of visits that it belongs to.

        A run ends where a layer of its own feeds the next visit: that is another network, and no pass of a loop.
        """
        latest_visit: dict[int, int] = {}
        count: Counter[int] = Counter()
        latest_new: list[int] = []
        runs = []
        for number, place in enumerate(ops.place):
            above = max([latest_new[parent] for _, parent in ops.parents[number]], default=-1)
            latest_new.append(number if self.always_new[number] else above)
            count[place] += latest_new[number] > latest_visit.get(place, number)
            latest_visit[place] = number
            runs.append((place, count[place]))
        return runs

    def _connect(self, ops: Operations) -> None:
        visits, places = self._visits, ops.place
        sources: dict[int, list[int]] = {}
        for number, links in enumerate(ops.parents):
            own_visits = visits[places[number]]
            if own_visits > 1:
                self._link(number, [(place, far) for place, parent in links for far in sources.get(parent, ())])
            if self.is_detour[number]:
                far_ends = {
                    far
                    for _, parent in links
                    for far in (parent, *sources.get(parent, ()))
                    if visits[places[far]] > own_visits
                }
                sources[number] = sorted(far_ends)[-_MOST_SOURCES:]

    def _link(self, number: int, links: list[Link]) -> None:
        if links:
            self.parents[number] = links
            for place, parent in links:
                self.children[parent] = children = self.children[parent] or []
                children.append((place, number))
