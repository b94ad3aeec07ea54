"""Which operations are passes of one layer: the three rules of the paper.

1. Operations on the same parameters are passes of one layer.
2. Equal operations next to such passes join them, growing outward (`growth`).
3. A sequence without parameters that repeats back to back is a loop (`repeats`).

Two steps keep a loop in one piece: operations that some passes leave out do not cut it in two (`detours`), and the
condition that it evaluates in every pass is one layer (`CarriedValues`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.layers.detours import Detours
from pytest_torchlens.history.layers.growth import LayerGrowth
from pytest_torchlens.history.layers.growth import visits_by_site
from pytest_torchlens.history.layers.repeats import repeats_by_site
from pytest_torchlens.history.layers.repeats import repeats_written_out
from pytest_torchlens.history.layers.signatures import Groups
from pytest_torchlens.history.layers.signatures import Operations


def group_passes(nodes: list[Node]) -> list[list[Node]]:
    """Return the layers of several passes, each a list of nodes in execution order.

    Operations without parameters count only if one of their layer descends from an input.  So a loop that fills a
    constant does not make a model recurrent, while the first pass of a loop may work on a constant state.
    """
    ops = Operations(nodes)
    groups, detours = Groups(len(ops)), Detours(ops)
    growth = LayerGrowth(ops, groups, detours)
    growth.grow(_on_same_parameters(ops, groups))
    growth.grow(repeats_by_site(ops, groups, visits_by_site(ops, detours)), inside=True)
    growth.grow(repeats_written_out(ops, groups), inside=True)
    carried = CarriedValues(ops, groups, detours)
    while layers := carried.join():
        growth.grow(layers, inside=True)
    return [[ops.nodes[number] for number in layer] for layer in groups.layers()]


def _on_same_parameters(ops: Operations, groups: Groups) -> list[int]:
    users: dict[int, list[int]] = defaultdict(list)
    for number, weights in enumerate(ops.weights):
        if weights:
            users[ops.key[number]].append(number)
    layers = [numbers for numbers in users.values() if len(numbers) > 1]
    for numbers in layers:
        groups.join(numbers)
    return [groups.of(numbers[0]) for numbers in layers]


_MOST_STREAMS = 1000
"""How many parallel streams of a loop are looked at."""


class CarriedValues:
    """Joins operations of one code position that work on successive values of a loop.

    ``while x.max() > 1: x = x / 2`` evaluates its condition once more than its body, first on the loop's input.
    Where passes take different branches, the carried value comes out of a different branch in each.  So the other rules
    do not join these operations.  This class does: they have one code position, and each works on the result of the
    previous pass.

    Parameters
    ----------
    ops, groups, detours
        The operations, the layers so far, and the operations that only some passes run.
    """

    def __init__(self, ops: Operations, groups: Groups, detours: Detours) -> None:
        self._ops = ops
        self._groups = groups
        self._detours = detours
        self._pairs = list(self._consecutive_visits())
        self._next = dict(self._pairs)

    def join(self) -> list[int]:
        """Join what the layers so far allow; return the layers that grew."""
        separate = [pair for pair in self._pairs if not self._groups.same(*pair)]
        joined = [pair for pair in separate if self._follows(*pair) and self._groups.join(list(pair))]
        self._pairs = separate
        return [self._groups.of(number) for number, _ in joined]

    def _consecutive_visits(self) -> Iterator[tuple[int, int]]:
        ops = self._ops
        latest: dict[tuple[int, int], int] = {}
        for number, key in enumerate(zip(ops.place, ops.key, strict=True)):
            if key in latest and ops.from_input[number] and not ops.weights[number]:
                yield latest[key], number
            latest[key] = number

    def _follows(self, earlier: int, number: int) -> bool:
        """Return whether operation `number` comes between `earlier` and the next pass of that one's layer."""
        if not self._is_between(earlier, number):
            return False
        later = self._next.get(number)
        for _ in range(_MOST_STREAMS):
            if later is None or self._groups.same(later, earlier):
                break
            later = self._next.get(later)
        return later is None or not self._groups.same(later, earlier) or self._is_between(number, later)

    def _is_between(self, earlier: int, number: int) -> bool:
        """Return whether `number` reads what `earlier` read, or values that derive from that or from its result.

        They must not all be the same values.
        """
        first = self._ops.nodes[earlier]
        before = {path: parent for parent, path, _ in first.parents}
        pairs = [(before.get(path), parent) for parent, path, _ in self._ops.nodes[number].parents]
        return any(former is not parent for former, parent in pairs) and all(
            former is parent or (former is not None and self._derives_from((first, former), parent))
            for former, parent in pairs
        )

    def _derives_from(self, starts: tuple[Node, Node], parent: Node) -> bool:
        """Return whether a value derives from one of two, by operations of the loop alone."""
        lowest, waiting = min(map(self._ops.number, starts)), [parent]
        seen = {id(parent)}
        while waiting:
            node = waiting.pop()
            if node in starts:
                return True
            if self._is_in_loop(self._ops.number(node)):
                for above, _, _ in node.parents:
                    if id(above) not in seen and (above in starts or self._ops.number(above) > lowest):
                        seen.add(id(above))
                        waiting.append(above)
        return False

    def _is_in_loop(self, number: int) -> bool:
        ops = self._ops
        if number < 0 or ops.place[number] in ops.shared_places:
            return False
        return self._detours.is_detour[number] or len(self._groups.members(self._groups.of(number))) > 1
