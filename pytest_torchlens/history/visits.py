"""The operations by key: what may be passes of one layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pytest_torchlens.history.cycles import in_cycles
from pytest_torchlens.history.detours import Detours
from pytest_torchlens.history.layers.signatures import Link
from pytest_torchlens.history.layers.signatures import Operations

_LOOK_BACK = 16
"""How many earlier operations of a key are tried: more than equal streams side by side, or equal steps of a body."""


class Visits:
    """Operations by key: the visits of each, and since when nothing new was made on the way to an operation.

    Parameters
    ----------
    ops
        The operations.
    keys
        What is equal for operations that may be passes of one layer.
    detours
        What is beside what across operations that some passes left out.

    Attributes
    ----------
    parents
        What each operation reads, across detours too.
    since
        The latest first visit among an operation and its ancestors; one on parameters is always new.
    loop
        Equal for operations whose keys lie on one cycle; None for those that are in no loop.
    """

    def __init__(self, ops: Operations, keys: list[int], detours: Detours | None = None) -> None:
        self.keys = keys
        self.parents: Sequence[Sequence[Link]] = ops.parents
        if detours and detours.any:
            self.parents = [[*near, *far] for near, far in zip(ops.parents, detours.parents, strict=True)]
        self._of_key: dict[int, list[int]] = defaultdict(list)
        self._nth: list[int] = []
        for number, key in enumerate(keys):
            visits = self._of_key[key]
            self._nth.append(len(visits))
            visits.append(number)
        self.since, self._alone = self._since(ops, detours)
        components = in_cycles(
            (keys[parent], key)
            for number, key in enumerate(keys)
            if len(self._of_key[key]) > 1
            for _, parent in self.parents[number]
            if len(self._of_key[keys[parent]]) > 1
        )
        self.loop = [components.get(key) for key in keys]

    def _since(self, ops: Operations, detours: Detours | None) -> tuple[list[int], list[int]]:
        """Return for each operation the latest first visit among it and its ancestors, and the latest that stays alone.

        One on parameters is always new.
        """
        taken = detours.taken if detours else [False] * len(ops)
        always_new = detours.always_new if detours else ops.weights
        since: list[int] = []
        alone: list[int] = []
        for number, key in enumerate(self.keys):
            new = ops.counts[number] and not taken[number]
            always = new and always_new[number]
            first, only = new and not self._nth[number], new and len(self._of_key[key]) == 1
            above = [parent for _, parent in ops.parents[number]]
            since.append(number if always or first else max([since[parent] for parent in above], default=-1))
            alone.append(number if always or only else max([alone[parent] for parent in above], default=-1))
        return since, alone

    def candidates(self, number: int) -> list[int]:
        """Return earlier visits of the same key with nothing new made since, latest first."""
        nth, since = self._nth[number], self.since[number]
        if not nth or self.loop[number] is None:
            return []
        visits = self._of_key[self.keys[number]]
        return [earlier for earlier in reversed(visits[max(0, nth - _LOOK_BACK) : nth]) if earlier >= since]

    def first(self, number: int) -> int:
        """Return the first visit of the key of an operation."""
        return self._of_key[self.keys[number]][0]

    def reads_something_new(self, number: int) -> bool:
        """Return whether what it is made from was made since the visit before, by what is never met again."""
        nth = self._nth[number]
        return bool(nth) and self._alone[number] > self._of_key[self.keys[number]][nth - 1]


def visits_by_site(ops: Operations, detours: Detours) -> Visits:
    """Return the operations by call site."""
    counted = zip(ops.key, ops.counts, strict=True)
    return Visits(ops, [key if counts else -number - 1 for number, (key, counts) in enumerate(counted)], detours)
