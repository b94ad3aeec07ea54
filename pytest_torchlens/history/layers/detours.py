"""Operations that only some passes of a loop run: a branch that is not taken each time, a step that is left out.

What such a detour connects is beside each other without it, so the passes with it and those without are one loop.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop
from heapq import heappush

from pytest_torchlens.history.layers.signatures import Link
from pytest_torchlens.history.layers.signatures import Operations

_AT_MOST = 4
"""What a detour may lead back to."""


class Detours:
    """The detours, and what is beside each other but for them.

    An operation is a detour if its place in the code runs no other function, it stands between two operations that
    were run from one place, which was visited more often than its own, and all that it reads was made before, or is
    made more often, or by detours.  Places are told by the positions from the model's forward down: only a loop, or a
    function that calls itself, comes back to one.

    Attributes
    ----------
    is_detour
        Whether an operation is a detour, by its number.
    always_new
        Whether it works on parameters, and its place on them alone but once, or on others as well.
    parents, children
        Argument place and number of what is beside each operation across detours.
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
        inside = self._inside(places)
        flags: list[bool] = []
        for number, place in enumerate(places):
            often = visits[place]
            flags.append(
                inside[number]
                and place not in shared
                and not self.always_new[number]
                and all(
                    flags[parent]
                    or not inside[parent]
                    or (visits[places[parent]] > often and places[parent] not in shared)
                    for _, parent in ops.parents[number]
                )
            )
        return flags

    def _inside(self, places: list[int]) -> list[bool]:
        """Return for each operation whether it stands between visits of a place that was visited more often."""
        visits = self._visits
        first: dict[int, int] = {}
        last = {place: number for number, place in enumerate(places) if visits[place] > 1}
        around: list[tuple[int, int]] = []
        inside = []
        for number, place in enumerate(places):
            if place in last and first.setdefault(place, number) == number:
                heappush(around, (-visits[place], last[place]))
            while around and around[0][1] <= number:
                heappop(around)
            inside.append(bool(around) and -around[0][0] > visits[place])
        return inside

    def _connect(self, ops: Operations) -> None:
        visits, places = self._visits, ops.place
        behind: dict[int, list[int]] = {}
        for number, links in enumerate(ops.parents):
            mine = visits[places[number]]
            if mine > 1:
                self._link(number, [(place, far) for place, parent in links for far in behind.get(parent, ())])
            if self.is_detour[number]:
                found = {
                    far
                    for _, parent in links
                    for far in (parent, *behind.get(parent, ()))
                    if visits[places[far]] > mine
                }
                behind[number] = sorted(found)[-_AT_MOST:]

    def _link(self, number: int, links: list[Link]) -> None:
        if links:
            self.parents[number] = links
            for place, parent in links:
                self.children[parent] = children = self.children[parent] or []
                children.append((place, number))
