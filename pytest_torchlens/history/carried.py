"""What a loop does in every pass with the value that it carries from pass to pass.

``while x.max() > 1: x = x / 2`` asks its question once more than it divides, first of what goes into the first pass;
and where passes take different branches, the value comes out of one branch now and of another then.  It is the same
place in the code, and what is worked on is what became of what was worked on before: passes of one layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.layers.detours import Detours
from pytest_torchlens.history.layers.signatures import Groups
from pytest_torchlens.history.layers.signatures import Operations

_AT_MOST = 1000
"""Streams side by side."""


class Carried:
    """Joins operations of one place that work on successive values of a loop.

    Parameters
    ----------
    ops, groups, detours
        The operations, which of them are one layer so far, and what some passes leave out.
    """

    def __init__(self, ops: Operations, groups: Groups, detours: Detours) -> None:
        self._ops = ops
        self._groups = groups
        self._detours = detours
        self._pairs = list(self._visits_in_a_row())
        self._next = dict(self._pairs)

    def join(self) -> list[int]:
        """Join what can be told by the layers so far; return the layers that grew."""
        apart = [pair for pair in self._pairs if not self._groups.same(*pair)]
        joined = [pair for pair in apart if self._follows(*pair) and self._groups.join(list(pair))]
        self._pairs = apart
        return [self._groups.of(number) for number, _ in joined]

    def _visits_in_a_row(self) -> Iterator[tuple[int, int]]:
        ops = self._ops
        latest: dict[tuple[int, int], int] = {}
        for number, key in enumerate(zip(ops.place, ops.key, strict=True)):
            if key in latest and ops.counts[number] and not ops.weights[number]:
                yield latest[key], number
            latest[key] = number

    def _follows(self, earlier: int, number: int) -> bool:
        """Return whether an operation comes between another and the next pass of that one's layer."""
        if not self._is_between(earlier, number):
            return False
        later = self._next.get(number)
        for _ in range(_AT_MOST):
            if later is None or self._groups.same(later, earlier):
                break
            later = self._next.get(later)
        return later is None or not self._groups.same(later, earlier) or self._is_between(number, later)

    def _is_between(self, earlier: int, number: int) -> bool:
        """Return whether all that an operation reads came of the earlier one, or of what that read, or is no other."""
        first = self._ops.nodes[earlier]
        before = {path: parent for parent, path, _ in first.parents}
        pairs = [(before.get(path), parent) for parent, path, _ in self._ops.nodes[number].parents]
        return any(former is not parent for former, parent in pairs) and all(
            former is parent or (former is not None and self._became((first, former), parent))
            for former, parent in pairs
        )

    def _became(self, begins: tuple[Node, Node], parent: Node) -> bool:
        """Return whether a value was made of one of two, by what the loop does in several passes or leaves out."""
        lowest, waiting = min(map(self._ops.number, begins)), [parent]
        seen = {id(parent)}
        while waiting:
            node = waiting.pop()
            if node in begins:
                return True
            if self._is_of_a_loop(self._ops.number(node)):
                for above, _, _ in node.parents:
                    if id(above) not in seen and (above in begins or self._ops.number(above) > lowest):
                        seen.add(id(above))
                        waiting.append(above)
        return False

    def _is_of_a_loop(self, number: int) -> bool:
        ops = self._ops
        if number < 0 or ops.place[number] in ops.shared_places:
            return False
        return self._detours.taken[number] or len(self._groups.members(self._groups.of(number))) > 1
