"""Chooses what to try next between something good and something bad."""

from __future__ import annotations

import math
from collections.abc import Sequence


class Search:
    """Narrows an ordered list, whose first entry is good and whose last is bad.

    Parameters
    ----------
    candidates
        At least two names.
    """

    def __init__(self, candidates: Sequence[str]) -> None:
        self._candidates = tuple(candidates)
        self._good, self._bad = 0, len(candidates) - 1
        self._skipped: set[int] = set()

    @property
    def next(self) -> str | None:
        """The untried candidate nearest to the middle; None if none is left."""
        middle = (self._good + self._bad) / 2
        untried = [place for place in range(self._good + 1, self._bad) if place not in self._skipped]
        place = min(untried, key=lambda place: abs(place - middle), default=None)
        return None if place is None else self._candidates[place]

    @property
    def suspects(self) -> tuple[str, ...]:
        """The candidates of which one is the first bad one; the last of them is bad."""
        return self._candidates[self._good + 1 : self._bad + 1]

    def good(self, name: str) -> None:
        """Note that a candidate is good."""
        self._good = self._candidates.index(name)

    def bad(self, name: str) -> None:
        """Note that a candidate is bad."""
        self._bad = self._candidates.index(name)

    def skip(self, name: str) -> None:
        """Note that nothing can be said of a candidate."""
        self._skipped.add(self._candidates.index(name))


def most_trials(between: int) -> int:
    """Return how many candidates must be tried, of so many that nothing is known of, if none is skipped."""
    return math.ceil(math.log2(between + 1))
