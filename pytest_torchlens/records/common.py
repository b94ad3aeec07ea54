"""What two sequences have in common, in order: Myers' algorithm, in time linear in their length."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Sequence

_MOST = 256
"""Differences looked through at once; beyond so many the way that got furthest is taken."""


def common_places(first: Sequence[Hashable], second: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield the places of equal items, as many as can be had in order; nearly so where hundreds in a row differ."""
    numbers: dict[Hashable, int] = {}
    ours = [numbers.setdefault(item, len(numbers)) for item in first]
    theirs = [numbers.setdefault(item, len(numbers)) for item in second]
    start = (0, 0)
    while start[0] < len(ours) and start[1] < len(theirs):
        way, start = _way(ours, theirs, *start)
        yield from way


_Places = tuple[int, int]


def _way(ours: list[int], theirs: list[int], left: int, right: int) -> tuple[list[_Places], _Places]:
    """Return the places of equal items on the best way from a pair of places on, and where it ends.

    ``reach[k]`` is the furthest place in `ours` of the ways that left out `k` more of ours than of theirs.
    """
    reach = {1: left}
    steps: list[dict[int, int]] = []
    shift = left - right
    for most in range(_MOST):
        steps.append(dict(reach))
        for k in range(-most, most + 1, 2):
            x = _entered(reach, k, most)
            while x < len(ours) and 0 <= x - k - shift < len(theirs) and ours[x] == theirs[x - k - shift]:
                x += 1
            reach[k] = x
            if x >= len(ours) and x - k - shift >= len(theirs):
                return _back(steps, k, x, shift), (x, x - k - shift)
    inside = [k for k, x in reach.items() if x <= len(ours) and x - k - shift <= len(theirs) and (k - most) % 2 == 0]
    k = max(inside, key=lambda k: 2 * reach[k] - k)
    return _back(steps, k, reach[k], shift), (reach[k], reach[k] - k - shift)


def _entered(reach: dict[int, int], k: int, most: int) -> int:
    """Return the place at which a way comes onto a diagonal: one of theirs, or of ours, is left out."""
    return reach[k + 1] if _leaves_theirs(reach, k, most) else reach[k - 1] + 1


def _back(steps: list[dict[int, int]], k: int, x: int, shift: int) -> list[_Places]:
    found: list[_Places] = []
    for most in range(len(steps) - 1, -1, -1):
        entered = _entered(steps[most], k, most)
        found += [(place, place - k - shift) for place in range(x - 1, entered - 1, -1)]
        k, x = (k + 1, entered) if _leaves_theirs(steps[most], k, most) else (k - 1, entered - 1)
    return found[::-1]


def _leaves_theirs(reach: dict[int, int], k: int, most: int) -> bool:
    return k == -most or (k != most and reach[k - 1] < reach[k + 1])
