"""Two sequences side by side in which something repeats, paired without crossings and pass by pass."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from itertools import pairwise

Pair = tuple[int, int]
"""A place in each sequence; -1 where that one has nothing to pair."""
_Part = tuple[Pair, Pair]
"""The places of both where a part begins and where it ends."""


def in_step(
    first: Sequence[Hashable], second: Sequence[Hashable], is_loop: Callable[[int, int, int], bool]
) -> list[Pair]:
    """Return the places of both sequences in one order, equal things of the same pass paired.

    What comes first in both tells the passes of a loop apart: its times are paired one by one, then what is between.

    Parameters
    ----------
    first, second
        What is equal in both where it is the same.
    is_loop
        Whether two places of sequence 0 or 1 with the same thing, ``is_loop(side, earlier, later)``, are passes of one
        loop and not two calls of one function.  Passes that one sequence alone has are then paired with nothing.
    """
    return _filled(sorted(_Steps((first, second), is_loop).pairs()), (len(first), len(second)))


class _Steps:
    def __init__(
        self, sides: tuple[Sequence[Hashable], Sequence[Hashable]], is_loop: Callable[[int, int, int], bool]
    ) -> None:
        self._sides = sides
        self._is_loop = is_loop
        self._at: tuple[dict[Hashable, list[int]], ...] = (defaultdict(list), defaultdict(list))
        for places, side in zip(self._at, sides, strict=True):
            for place, key in enumerate(side):
                places[key].append(place)
        self._alone: tuple[set[int], set[int]] = (set(), set())

    def pairs(self) -> list[Pair]:
        found: list[Pair] = []
        waiting: list[_Part] = [((0, 0), (len(self._sides[0]), len(self._sides[1])))]
        while waiting:
            (start, begin), (end, stop) = waiting.pop()
            if start >= end or begin >= stop:
                continue
            if start in self._alone[0]:
                waiting.append(((start + 1, begin), (end, stop)))
                continue
            times = [self._times(0, start, (start, end)), self._times(1, start, (begin, stop))]
            pairs = list(zip(*times, strict=False))
            if not pairs:
                waiting.append(((start + 1, begin), (end, stop)))
                continue
            found += pairs
            self._leave_further_passes(times, pairs, (end, stop))
            waiting += [((a + 1, b + 1), later) for (a, b), later in pairwise([*pairs, (end, stop)])]
        return found

    def _times(self, side: int, of_first: int, part: Pair) -> list[int]:
        places = self._at[side].get(self._sides[0][of_first], [])
        found = places[bisect_left(places, part[0]) : bisect_left(places, part[1])]
        return [place for place in found if place not in self._alone[side]]

    def _leave_further_passes(self, times: list[list[int]], pairs: list[Pair], ends: Pair) -> None:
        """Leave alone the passes that one side has more, up to the last thing done in passes of either before."""
        for side, (places, end) in enumerate(zip(times, ends, strict=True)):
            if len(places) > len(pairs) and self._is_loop(side, places[len(pairs) - 1], places[len(pairs)]):
                further, other = places[len(pairs)], times[1 - side]
                known = {*self._sides[side][places[0] : further], *self._sides[1 - side][other[0] : other[-1]]}
                last = next(place for place in reversed(range(end)) if self._sides[side][place] in known)
                self._alone[side].update(range(further, last + 1))


def _filled(pairs: list[Pair], lengths: Pair) -> list[Pair]:
    """Return pairs with what is between them: of the second sequence, then of the first."""
    order: list[Pair] = []
    done = (-1, -1)
    for pair in [*pairs, lengths]:
        order += [(-1, place) for place in range(done[1] + 1, pair[1])]
        order += [(place, -1) for place in range(done[0] + 1, pair[0])]
        order.append(pair)
        done = pair
    return order[:-1]
