"""The third rule: a sequence of operations that repeats back to back is a loop.

Back to back means in the flow of data: a pass reads what the previous pass made, and nothing new is made in between.
Two kinds count: operations called from one place in the code, whose scalars and shapes may change from pass to pass
(`repeats_by_site`); and blocks of two operations or more, written out one after the other with the same arguments and
shapes (`repeats_written_out`).

`Rounds` finds the pass that an operation ran in.  Parallel streams (``xs = [f(a, b) for a, b in zip(xs, others)]``) run
one place in the code several times in a pass.  An operation that reads several streams continues the one at its own
index.
"""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from heapq import heappop
from heapq import heappush

from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.layers.growth import Visits
from pytest_torchlens.history.layers.signatures import Groups
from pytest_torchlens.history.layers.signatures import Operations

_STEPS = 1000
"""How many operations are searched for a path to an earlier pass."""


def repeats_by_site(ops: Operations, groups: Groups, visits: Visits) -> list[int]:
    """Join operations of one call site that are back to back; return the layers that grew."""
    keys, rounds = visits.keys, Rounds(visits)
    joined, on_path = [], set()
    for number in reversed(range(len(ops))):
        candidates = [] if number in on_path else visits.candidates(number)
        if not candidates or groups.same(number, candidates[0]):
            continue
        lowest = max(visits.since[number], *rounds.before(number)[:1], 0)
        path = _path_to_nearest(visits, number, min(lowest, candidates[-1]))
        earlier = rounds.predecessor(number, path[-1]) if path else number
        if path and not _is_plain_sum(ops, groups, earlier, number) and groups.join([earlier, number]):
            joined.append(number)
            if len({keys[step] for step in path}) == len(path):
                on_path.update(path[:-1])  # no loop inside: `LayerGrowth` joins these
    return [groups.of(number) for number in joined]


def _path_to_nearest(visits: Visits, number: int, lowest: int) -> list[int]:
    """Return the operations back to the nearest ancestor of the same key, which comes last.

    The list is empty if there is no such ancestor from `lowest` on, or if the two are not back to back.
    """
    keys, loop = visits.keys, visits.loop
    waiting, seen, path = [-number], {number}, []
    while waiting:
        latest = -heappop(waiting)
        if latest != number:
            path.append(latest)
            if keys[latest] == keys[number]:
                return path
        if visits.reads_something_new(latest):
            return []
        for _, parent in visits.parents[latest]:
            if parent >= lowest and parent not in seen and loop[parent] == loop[number]:
                seen.add(parent)
                heappush(waiting, -parent)
    return []


class Rounds:
    """Operations by key and round.  A round begins where an operation reads a value made at its own step or later.

    Parameters
    ----------
    visits
        The operations by key.
    """

    def __init__(self, visits: Visits) -> None:
        self._keys, self._parents, self._loop = visits.keys, visits.parents, visits.loop
        self._round: list[int] = []
        self._index: list[int] = []
        self._members: dict[tuple[int, int], list[int]] = defaultdict(list)
        place: list[int] = []
        for number, (key, loop) in enumerate(zip(self._keys, self._loop, strict=True)):
            place.append(first := visits.first(number))
            round_number = 0
            for _, parent in self._parents[number] if loop is not None else ():
                if self._loop[parent] == loop:
                    round_number = max(round_number, self._round[parent] + (place[parent] >= first))
            members = self._members[key, round_number]
            self._round.append(round_number)
            self._index.append(len(members))
            members.append(number)

    def before(self, number: int) -> list[int]:
        """Return the operations of the same key in the previous round."""
        return self._members.get((self._keys[number], self._round[number] - 1), [])

    def predecessor(self, number: int, nearest: int) -> int:
        """Return the operation that `number` is the next pass of; `nearest` is its nearest ancestor of the same key."""
        peers, own = self.before(number), self._members[self._keys[number], self._round[number]]
        if nearest not in peers[-len(own) :] or len(peers) != len(own):
            return nearest
        likely = peers[self._index[number]]
        return likely if likely == nearest or self._leads_to(likely, number) else nearest

    def _leads_to(self, earlier: int, number: int) -> bool:
        waiting, seen = [number], {number}
        while waiting and len(seen) < _STEPS:
            at = waiting.pop()
            if at == earlier:
                return True
            if at == number or self._keys[at] != self._keys[number]:
                inside = [parent for _, parent in self._parents[at] if self._loop[parent] == self._loop[number]]
                waiting += [parent for parent in inside if parent >= earlier and parent not in seen]
                seen.update(waiting)
        return False


def _is_plain_sum(ops: Operations, groups: Groups, earlier: int, number: int) -> bool:
    """Return whether one operation alone combines values of different kinds, as ``sum([a, b, c])`` does."""
    others = [parent for parent, _, _ in ops.nodes[number].parents if ops.number(parent) != earlier]
    if any(ops.number(parent) > earlier for parent in others):
        return False  # they are made in the loop
    if len(others) == len(ops.nodes[number].parents):
        return False  # there are other operations between the two
    before = {path: parent for parent, path, _ in ops.nodes[earlier].parents}
    places = [(parent, path) for parent, path, _ in ops.nodes[number].parents if parent in others]
    return not all(_have_same_signature(ops, groups, before.get(path), parent) for parent, path in places)


def _have_same_signature(ops: Operations, groups: Groups, first: Node | None, second: Node) -> bool:
    """Return whether the values that two passes read from outside are of one kind."""
    if first is None:
        return False
    if first is second or (first.call is not None and first.call is second.call):
        return True
    one, two = ops.number(first), ops.number(second)
    if min(one, two) < 0:
        return first.kind == second.kind and first.from_input == second.from_input
    return ops.network[one] == ops.network[two] and (
        groups.same(one, two) or ops.key[one] == ops.key[two] or ops.call_signature(one) == ops.call_signature(two)
    )


def repeats_written_out(ops: Operations, groups: Groups) -> list[int]:
    """Join blocks of two operations or more that are back to back; return the layers that grew."""
    kinds = Counter(ops.kind)
    keys = [
        ops.call_signature(number) if kinds[kind] > 1 and ops.from_input[number] else -number - 1
        for number, kind in enumerate(ops.kind)
    ]
    if len({(key, groups.of(number)) for number, key in enumerate(keys)}) == len(set(keys)):
        return []  # whatever has one signature is one layer already
    visits = Visits(ops, keys)
    joined = []
    for number in reversed(range(len(ops))):
        latest = max((parent for _, parent in ops.parents[number] if ops.from_input[parent]), default=-1)
        for earlier in visits.candidates(number):
            if groups.same(earlier, number):
                break
            if latest <= earlier or all(keys[parent] != keys[latest] for _, parent in ops.parents[earlier]):
                continue  # no two blocks of two operations end in these
            block = _Block(ops, groups, keys, earlier, number).match()
            if len({keys[later] for later in block}) == 1:
                break  # one operation repeated is not a sequence: a + b + c + d
            if block and not _is_shifted(groups, block) and not any(_is_seam(groups, *pair) for pair in block.items()):
                joined += [later for later, before in block.items() if groups.join([later, before])]
                break
    return [groups.of(number) for number in joined]


class _Block:
    """The block that ends in an operation, matched step by step with the previous block."""

    def __init__(self, ops: Operations, groups: Groups, keys: list[int], earlier: int, number: int) -> None:
        self._ops = ops
        self._groups = groups
        self._keys = keys
        self._end = earlier
        self._pairs = {number: earlier}
        self._waiting = [number]
        self._outside: list[tuple[Node, Node]] = []

    def match(self) -> dict[int, int]:
        """Return for each operation its counterpart in the previous block; ``{}`` if the two are not back to back."""
        while self._waiting:
            later = self._waiting.pop()
            ours, theirs = self._ops.nodes[later].parents, self._ops.nodes[self._pairs[later]].parents
            if len(ours) != len(theirs):
                return {}
            for (parent, path, _), (before, path_before, _) in zip(ours, theirs, strict=True):
                if path != path_before or not self._pair(parent, before):
                    return {}
        former = set(self._pairs.values())
        numbers = [(self._ops.number(parent), before, parent) for parent, before in self._outside]
        unlike = (
            p for p in numbers if p[0] not in former and not _have_same_signature(self._ops, self._groups, p[1], p[2])
        )
        is_carried = any(number in former for number, _, _ in numbers)
        return self._pairs if len(former) > 1 and is_carried and next(unlike, None) is None else {}

    def _pair(self, parent: Node, before: Node) -> bool:
        number = self._ops.number(parent)
        if number <= self._end:
            self._outside.append((parent, before))
            return True
        other = self._ops.number(before)
        if number in self._pairs:
            return self._pairs[number] == other
        if not 0 <= other <= self._end or self._keys[number] != self._keys[other]:
            return False
        self._pairs[number] = other
        self._waiting.append(number)
        return True


def _is_shifted(groups: Groups, block: dict[int, int]) -> bool:
    """Return whether a block overlaps the previous pass of a loop only in part."""
    separate = [pair for pair in block.items() if not groups.same(*pair)]
    return len(separate) < len(block) and any(
        groups.first(later) < before or groups.last(before) > later for later, before in separate
    )


def _is_seam(groups: Groups, number: int, earlier: int) -> bool:
    """Return whether a pass of a known loop ends between the two operations.

    A body that ends as it begins (``cos sin tan cos sin``) does not repeat its first steps at its end.
    """
    return groups.first(earlier) > groups.first(number)
