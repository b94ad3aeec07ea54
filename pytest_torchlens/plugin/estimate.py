"""How far a run is, and how long it will take yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MINUTE, HOUR = 60, 3600


class Estimate:
    """Time left, from what the models took in the last run and what those took that have ended in this one.

    Parameters
    ----------
    costs
        Seconds that each model of the run is expected to take, by node id.
    workers
        How many run at a time.
    """

    def __init__(self, costs: Mapping[str, float], workers: int = 1) -> None:
        self._left = dict(costs)
        self._total = len(costs)
        self._workers = workers
        self._expected = self._taken = 0.0

    @property
    def nodeids(self) -> set[str]:
        """Models that have not ended."""
        return set(self._left)

    def end(self, nodeid: str, seconds: float) -> None:
        """Note that a model has ended, and what it took."""
        if nodeid in self._left:
            self._expected += self._left.pop(nodeid)
            self._taken += seconds

    def __str__(self) -> str:
        """Say it: ``"12 of 300, about 4 min left"``."""
        place = f"{self._total - len(self._left)} of {self._total}"
        if not self._expected or not self._left:
            return place
        left = sum(self._left.values()) * self._taken / self._expected / self._workers
        return f"{place}, about {_in_words(left)} left"


def _in_words(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"
