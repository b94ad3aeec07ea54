"""The second rule: equal operations adjacent to the passes of a layer are passes of one layer too, and so on outward.

`LayerGrowth` applies the rule.  `Visits` indexes operations by key, for the third rule (`repeats`).
"""

from __future__ import annotations

from collections import defaultdict
from collections import deque
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from pytest_torchlens.history.layers.detours import Detours
from pytest_torchlens.history.layers.signatures import Groups
from pytest_torchlens.history.layers.signatures import Link
from pytest_torchlens.history.layers.signatures import Links
from pytest_torchlens.history.layers.signatures import Operations
from pytest_torchlens.history.layers.signatures import largest

_LOOK_BACK = 16
"""How many earlier operations of a key are tried: more than a model has parallel streams or equal steps in a body."""


Slot = list[tuple[int, int]]
"""Pairs of a pass and an operation adjacent to it; a pass may have several."""


class LayerGrowth:
    """Joins operations that are adjacent to the passes of layers.

    Parameters
    ----------
    ops
        The operations.
    groups
        The layers so far.
    detours
        The operations that only some passes run.
    """

    def __init__(self, ops: Operations, groups: Groups, detours: Detours) -> None:
        self._ops = ops
        self._groups = groups
        self._detours = detours

    def grow(self, roots: Iterable[int], inside: bool = False) -> None:
        """Join the operations next to the passes of the layers `roots`, then those next to them, and so on.

        With `inside`, join only operations that ran between the previous pass and the next one.  They belong to the
        loop; an operation that uses a pass's result later does not.
        """
        groups = self._groups
        waiting = deque(dict.fromkeys(roots))
        queued = set(waiting)
        while waiting:
            root = waiting.popleft()
            queued.discard(root)
            if groups.of(root) != root:
                continue  # it has become part of another layer in the queue
            for operations in list(self._adjacent(sorted(groups.members(root)), inside)):
                if groups.join(operations) and (larger := groups.of(operations[0])) not in queued:
                    queued.add(larger)
                    waiting.append(larger)

    def _adjacent(self, passes: list[int], inside: bool) -> Iterator[list[int]]:
        """Yield sets of equal operations, one for each pass, adjacent in one direction and at one argument place."""
        ops, detours = self._ops, self._detours
        near = self._neighbours(passes, inside, ops.children, ops.parents)
        far = self._neighbours(passes, inside, detours.children, detours.parents) if detours.any else {}
        for key in (near | far) if far else near:
            slot, across = near.get(key, []), far.get(key, [])
            if self._is_candidate(slot + across):
                yield from _equal(ops, slot, across)

    def _is_candidate(self, slot: Slot) -> bool:
        return len(slot) > 1 and any(not self._groups.same(slot[0][1], other) for _, other in slot)

    def _neighbours(
        self, passes: list[int], inside: bool, children: Links, parents: Links
    ) -> dict[tuple[bool, int, int], Slot]:
        weights, kinds = self._ops.weights, self._ops.kind
        slots: dict[tuple[bool, int, int], Slot] = defaultdict(list)
        for step, number in enumerate(passes):
            low = passes[step - 1] if inside and step else -1
            high = passes[step + 1] if inside and step + 1 < len(passes) else len(weights)
            for after, links in ((True, children[number]), (False, parents[number])):
                for place, other in links:
                    if low <= other <= high and not weights[other]:
                        slots[after, place, kinds[other]].append((step, other))
        return slots


def _equal(ops: Operations, slot: Slot, across: Slot) -> Iterator[list[int]]:
    """Yield sets of a slot's operations from one call site, or with the same arguments; one for each pass.

    Operations `across` a detour are equal only if their call site is the same.
    """
    by_site: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    times: dict[tuple[int, int], int] = defaultdict(int)
    for step, other in slot + across:
        nth = times[step, ops.site[other]]
        times[step, ops.site[other]] += 1
        by_site[ops.site[other], nth][step] = other
    beyond = {other for _, other in across}
    near = [by_pass for by_pass in by_site.values() if beyond.isdisjoint(by_pass.values())]
    far = [by_pass for by_pass in by_site.values() if not beyond.isdisjoint(by_pass.values())]
    for by_pass in (*(_with_equal_arguments(ops, near) if len(near) > 1 else near), *far):
        operations = list(dict.fromkeys(by_pass.values()))
        if len(operations) > 1 and any(ops.from_input[number] for number in operations):
            yield operations


def _with_equal_arguments(ops: Operations, sets: list[dict[int, int]]) -> Iterator[dict[int, int]]:
    """Merge sets whose arguments are equal, unless a pass would then have two operations."""
    by_arguments: dict[int, list[dict[int, int]]] = defaultdict(list)
    for by_pass in sets:
        others = by_arguments[ops.call_signature(next(iter(by_pass.values())))]
        disjoint = next((other for other in others if other.keys().isdisjoint(by_pass)), None)
        if disjoint is None:
            others.append(by_pass)
        else:
            disjoint.update(by_pass)
    for others in by_arguments.values():
        yield from others


class Visits:
    """Operations by key, in execution order; each operation is one visit of its key.

    Parameters
    ----------
    ops
        The operations.
    keys
        The key of each operation.  Operations with equal keys may be passes of one layer.
    detours
        The operations that only some passes run.

    Attributes
    ----------
    parents
        What each operation reads, across detours too.
    since
        For each operation the latest of it and its ancestors that is the first visit of its key, or has parameters.
    loop
        The cycle of keys that each operation lies on; None for those outside all loops.
    """

    def __init__(self, ops: Operations, keys: list[int], detours: Detours | None = None) -> None:
        self.keys = keys
        self._network = ops.network
        self.parents: Sequence[Sequence[Link]] = ops.parents
        if detours and detours.any:
            self.parents = [[*near, *far] for near, far in zip(ops.parents, detours.parents, strict=True)]
        self._of_key: dict[int, list[int]] = defaultdict(list)
        self._visit_index: list[int] = []
        for number, key in enumerate(keys):
            visits = self._of_key[key]
            self._visit_index.append(len(visits))
            visits.append(number)
        self.since, self._latest_single = self._since(ops, detours)
        components = in_cycles(
            (keys[parent], key)
            for number, key in enumerate(keys)
            if len(self._of_key[key]) > 1
            for _, parent in self.parents[number]
            if len(self._of_key[keys[parent]]) > 1
        )
        self.loop = [components.get(key) for key in keys]

    def _since(self, ops: Operations, detours: Detours | None) -> tuple[list[int], list[int]]:
        """Return for each operation the latest first visit, and the latest only visit, among it and its ancestors.

        An operation with parameters counts as both.
        """
        is_detour = detours.is_detour if detours else [False] * len(ops)
        always_new = detours.always_new if detours else ops.weights
        since: list[int] = []
        latest_single: list[int] = []
        for number, key in enumerate(self.keys):
            is_new = ops.from_input[number] and not is_detour[number]
            is_always_new = is_new and always_new[number]
            first, is_single = is_new and not self._visit_index[number], is_new and len(self._of_key[key]) == 1
            above = ops.parents[number]
            since.append(number if is_always_new or first else largest(since, above))
            latest_single.append(number if is_always_new or is_single else largest(latest_single, above))
        return since, latest_single

    def candidates(self, number: int) -> list[int]:
        """Return earlier visits of the same key, latest first, that no ancestor with a new key follows."""
        nth, since = self._visit_index[number], self.since[number]
        if not nth or self.loop[number] is None:
            return []
        visits = self._of_key[self.keys[number]]
        return [earlier for earlier in reversed(visits[max(0, nth - _LOOK_BACK) : nth]) if earlier >= since]

    def first(self, number: int) -> int:
        """Return the first visit of the key of an operation."""
        return self._of_key[self.keys[number]][0]

    def reads_something_new(self, number: int) -> bool:
        """Return whether an ancestor since the previous visit occurs only once, or another network feeds this visit."""
        nth = self._visit_index[number]
        if not nth:
            return False
        earlier = self._of_key[self.keys[number]][nth - 1]
        return self._latest_single[number] > earlier or self._reads_another_network(earlier, number)

    def _reads_another_network(self, earlier: int, number: int) -> bool:
        """Return whether two visits read, at one argument place, what two networks outside the loop made."""
        loop, network, before = self.loop, self._network, dict(self.parents[earlier])
        return any(
            place in before
            and loop[parent] != loop[number] != loop[before[place]]
            and network[parent] != network[before[place]]
            and parent not in before.values()
            for place, parent in self.parents[number]
        )


def visits_by_site(ops: Operations, detours: Detours) -> Visits:
    """Return the operations that descend from an input, by call site."""
    pairs = zip(ops.key, ops.from_input, strict=True)
    return Visits(ops, [key if from_input else -number - 1 for number, (key, from_input) in enumerate(pairs)], detours)


def in_cycles(edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the number of the strongly connected component of each node that lies on a cycle.

    Tarjan's algorithm (SIAM Journal on Computing 1, 1972), without recursion.
    """
    after: dict[int, dict[int, None]] = defaultdict(dict)
    for tail, head in edges:
        after[tail][head] = None
    search = _TarjanSearch(after)
    for node in list(after):
        if node not in search.index:
            search.start(node)
    return search.component


class _TarjanSearch:
    def __init__(self, after: dict[int, dict[int, None]]) -> None:
        self._after = after
        self.index: dict[int, int] = {}
        self.component: dict[int, int] = {}
        self._low: dict[int, int] = {}
        self._open: list[int] = []
        self._is_open: set[int] = set()
        self._path: list[tuple[int, Iterator[int]]] = []

    def start(self, node: int) -> None:
        self._enter(node)
        while self._path:
            tail, heads = self._path[-1]
            head = next(heads, None)
            if head is None:
                self._leave(tail)
            elif head not in self.index:
                self._enter(head)
            elif head in self._is_open:
                self._low[tail] = min(self._low[tail], self.index[head])

    def _enter(self, node: int) -> None:
        self.index[node] = self._low[node] = len(self.index)
        self._open.append(node)
        self._is_open.add(node)
        self._path.append((node, iter(self._after.get(node, ()))))

    def _leave(self, node: int) -> None:
        self._path.pop()
        if self._path:
            above = self._path[-1][0]
            self._low[above] = min(self._low[above], self._low[node])
        if self._low[node] == self.index[node]:
            self._close(node)

    def _close(self, first: int) -> None:
        part = [self._open.pop()]
        while part[-1] != first:
            part.append(self._open.pop())
        self._is_open.difference_update(part)
        if len(part) > 1 or first in self._after.get(first, ()):
            self.component.update(dict.fromkeys(part, self.index[first]))
