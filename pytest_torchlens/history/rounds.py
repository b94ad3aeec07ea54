"""Which pass of a loop an operation ran in, and which of its likes in the pass before it follows on.

Streams side by side (``xs = [f(a, b) for a, b in zip(xs, others)]``) run one place in the code several times in a pass.
One that reads several of them follows on the one at its own place in the row.
"""

from __future__ import annotations

from collections import defaultdict

from pytest_torchlens.history.layers.growth import Visits

_STEPS = 1000
"""How many operations of one pass are looked at for the way to another."""


class Rounds:
    """Operations of a key by round: one more where what an operation reads is made at its place in the loop or later.

    Parameters
    ----------
    visits
        The operations by key.
    """

    def __init__(self, visits: Visits) -> None:
        self._keys, self._parents, self._loop = visits.keys, visits.parents, visits.loop
        self._round: list[int] = []
        self._nth: list[int] = []
        self._members: dict[tuple[int, int], list[int]] = defaultdict(list)
        place: list[int] = []
        for number, (key, loop) in enumerate(zip(self._keys, self._loop, strict=True)):
            place.append(first := visits.first(number))
            reached = 0
            for _, parent in self._parents[number] if loop is not None else ():
                if self._loop[parent] == loop:
                    reached = max(reached, self._round[parent] + (place[parent] >= first))
            members = self._members[key, reached]
            self._round.append(reached)
            self._nth.append(len(members))
            members.append(number)

    def before(self, number: int) -> list[int]:
        """Return the operations of the same key in the round before."""
        return self._members.get((self._keys[number], self._round[number] - 1), [])

    def followed(self, number: int, nearest: int) -> int:
        """Return what an operation follows on, given its nearest ancestor of the same key."""
        peers, own = self.before(number), self._members[self._keys[number], self._round[number]]
        if nearest not in peers[-len(own) :] or len(peers) != len(own):
            return nearest
        likely = peers[self._nth[number]]
        return likely if likely == nearest or self._leads_to(likely, number) else nearest

    def _leads_to(self, earlier: int, number: int) -> bool:
        waiting, seen = [number], {number}
        while waiting and len(seen) < _STEPS:
            at = waiting.pop()
            if at == earlier:
                return True
            if at == number or self._keys[at] != self._keys[number]:
                inside = [parent for _, parent in self._parents[at] if self._loop[parent] == self._loop[number]]
                waiting += [parent for parent in inside if parent >= earlier and parent not in seen]
                seen.update(waiting)
        return False
