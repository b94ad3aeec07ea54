"""The second rule: equal operations adjacent to the passes of a layer are passes of one layer too, and so on outward.

`Visits` indexes operations by key: the candidates for passes of one layer, for this rule and the third.
"""

from __future__ import annotations

from collections import defaultdict
from collections import deque
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from pytest_torchlens.history.control_flow.conditions import in_cycles
from pytest_torchlens.history.layers.detours import Detours
from pytest_torchlens.history.layers.signatures import Groups
from pytest_torchlens.history.layers.signatures import Link
from pytest_torchlens.history.layers.signatures import Links
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
        is_detour = detours.is_detour if detours else [False] * len(ops)
        always_new = detours.always_new if detours else ops.weights
        since: list[int] = []
        alone: list[int] = []
        for number, key in enumerate(self.keys):
            new = ops.from_input[number] and not is_detour[number]
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
    counted = zip(ops.key, ops.from_input, strict=True)
    return Visits(ops, [key if counts else -number - 1 for number, (key, counts) in enumerate(counted)], detours)


Slot = list[tuple[int, int]]
"""Pass, and the operation beside it; a pass may have several."""


class LayerGrowth:
    """Joins what is beside the passes of layers.

    Parameters
    ----------
    ops
        The operations.
    groups
        Which of them are one layer so far.
    detours
        What is beside what across operations that some passes left out.
    """

    def __init__(self, ops: Operations, groups: Groups, detours: Detours) -> None:
        self._ops = ops
        self._groups = groups
        self._detours = detours

    def grow(self, roots: Iterable[int], inside: bool = False) -> None:
        """Join what is beside the passes of the layers `roots`, then what is beside that, until nothing more fits.

        With `inside`, only what ran between the passes before and after: what a loop does, not what is done with the
        results of its passes later.
        """
        groups = self._groups
        waiting = deque(dict.fromkeys(roots))
        queued = set(waiting)
        while waiting:
            root = waiting.popleft()
            queued.discard(root)
            if groups.of(root) != root:
                continue  # it is part of a layer that waits as well
            for found in list(self._beside(sorted(groups.members(root)), inside)):
                if groups.join(found) and (joined := groups.of(found[0])) not in queued:
                    queued.add(joined)
                    waiting.append(joined)

    def _beside(self, passes: list[int], inside: bool) -> Iterator[list[int]]:
        """Yield sets of equal operations, each beside another pass, in the same way and at the same argument place."""
        ops, detours = self._ops, self._detours
        near = self._slots(passes, inside, ops.children, ops.parents)
        far = self._slots(passes, inside, detours.children, detours.parents) if detours.any else {}
        for key in (near | far) if far else near:
            slot, across = near.get(key, []), far.get(key, [])
            if self._may_grow(slot + across):
                yield from _equal(ops, slot, across)

    def _may_grow(self, slot: Slot) -> bool:
        return len(slot) > 1 and any(not self._groups.same(slot[0][1], other) for _, other in slot)

    def _slots(
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
    """Yield sets of a slot's operations from one call site, or with the same arguments; one of each pass.

    What is beside a pass `across` a detour is the same at the same call site alone.
    """
    by_site: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    seen: dict[tuple[int, int], int] = defaultdict(int)
    for step, other in slot + across:
        nth = seen[step, ops.site[other]]
        seen[step, ops.site[other]] += 1
        by_site[ops.site[other], nth][step] = other
    beyond = {other for _, other in across}
    near = [one for one in by_site.values() if beyond.isdisjoint(one.values())]
    far = [one for one in by_site.values() if not beyond.isdisjoint(one.values())]
    for one in (*(_with_equal_arguments(ops, near) if len(near) > 1 else near), *far):
        found = list(dict.fromkeys(one.values()))
        if len(found) > 1 and any(ops.from_input[number] for number in found):
            yield found


def _with_equal_arguments(ops: Operations, sets: list[dict[int, int]]) -> Iterator[dict[int, int]]:
    """Put sets together where their arguments are the same and no pass would have two."""
    by_arguments: dict[int, list[dict[int, int]]] = defaultdict(list)
    for one in sets:
        others = by_arguments[ops.call_signature(next(iter(one.values())))]
        fitting = next((other for other in others if other.keys().isdisjoint(one)), None)
        if fitting is None:
            others.append(one)
        else:
            fitting.update(one)
    for others in by_arguments.values():
        yield from others
