"""The second rule: equal operations beside the passes of a layer are passes of one layer too, and so on outward."""

from __future__ import annotations

from collections import defaultdict
from collections import deque
from collections.abc import Iterable
from collections.abc import Iterator

from pytest_torchlens.history.sameness import Groups
from pytest_torchlens.history.sameness import Operations
from pytest_torchlens.history.sameness import Place

Slot = list[tuple[int, int]]
"""Pass, and the operation beside it; a pass may have several."""


def grow(ops: Operations, groups: Groups, roots: Iterable[int], inside: bool = False) -> None:
    """Join what is beside the passes of the layers `roots`, then what is beside that, until nothing more fits.

    With `inside`, only what ran between the passes before and after: what a loop does, not what is done with the
    results of its passes later.
    """
    waiting = deque(dict.fromkeys(roots))
    queued = set(waiting)
    while waiting:
        root = waiting.popleft()
        queued.discard(root)
        if groups.of(root) != root:
            continue  # it is part of a layer that waits as well
        for found in list(_beside(ops, groups, groups.members(root), inside)):
            if groups.join(found) and (joined := groups.of(found[0])) not in queued:
                queued.add(joined)
                waiting.append(joined)


def _beside(ops: Operations, groups: Groups, passes: list[int], inside: bool) -> Iterator[list[int]]:
    """Yield sets of equal operations, each beside another pass, in the same way and at the same argument place."""
    slots: dict[tuple[bool, Place, int], Slot] = defaultdict(list)
    passes, weights, kinds = sorted(passes), ops.weights, ops.kind
    for step, number in enumerate(passes):
        low = passes[step - 1] if inside and step else -1
        high = passes[step + 1] if inside and step + 1 < len(passes) else len(ops)
        for after, links in ((True, ops.children[number]), (False, ops.parents[number])):
            for place, other in links:
                if low <= other <= high and not weights[other]:
                    slots[after, place, kinds[other]].append((step, other))
    for slot in slots.values():
        if len(slot) > 1 and any(not groups.same(slot[0][1], other) for _, other in slot):
            yield from _equal(ops, slot)


def _equal(ops: Operations, slot: Slot) -> Iterator[list[int]]:
    """Yield sets of a slot's operations from one call site, or with the same arguments; one of each pass."""
    by_site: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    seen: dict[tuple[int, int], int] = defaultdict(int)
    for step, other in slot:
        nth = seen[step, ops.site[other]]
        seen[step, ops.site[other]] += 1
        by_site[ops.site[other], nth][step] = other
    sets = list(by_site.values())
    for one in _with_equal_arguments(ops, sets) if len(sets) > 1 else sets:
        found = list(dict.fromkeys(one.values()))
        if len(found) > 1 and any(ops.counts[number] for number in found):
            yield found


def _with_equal_arguments(ops: Operations, sets: list[dict[int, int]]) -> Iterator[dict[int, int]]:
    """Put sets together where their arguments are the same and no pass would have two."""
    by_arguments: dict[int, list[dict[int, int]]] = defaultdict(list)
    for one in sets:
        others = by_arguments[ops.alike(next(iter(one.values())))]
        fitting = next((other for other in others if other.keys().isdisjoint(one)), None)
        if fitting is None:
            others.append(one)
        else:
            fitting.update(one)
    for others in by_arguments.values():
        yield from others
