"""Aligns the operations of two forward passes, of one model or of a model and a changed copy of it.

`align` pairs operations module call by module call.  `in_step` pairs two sequences pass by pass where loops repeat.
`common_places` is Myers' algorithm for what two sequences have in common, in time linear in their length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections import deque
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_torchlens.records.operation import Operation


@dataclass(frozen=True)
class Pair:
    """An operation of both passes, or of one of them.

    Attributes
    ----------
    first, second
        The operation in each pass; None where that pass has no such operation.
    changes
        What differs, each as ``"shape (5, 5) → (5, 6)"``; values depend on the input and are not compared.
    """

    first: Operation | None
    second: Operation | None
    changes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``"same"``, ``"changed"``, ``"removed"`` (only in the first pass) or ``"added"`` (only in the second)."""
        if self.second is None:
            return "removed"
        if self.first is None:
            return "added"
        return "changed" if self.changes else "same"

    @property
    def operation(self) -> Operation:
        """The operation in the second pass, or in the first if the second lacks it."""
        found = self.second or self.first
        assert found is not None  # noqa: S101 - a pair has at least one
        return found

    @property
    def has_other_values(self) -> bool:
        """Whether both have fingerprints, and they differ."""
        if self.first is None or self.second is None:
            return False
        prints = self.first.fingerprint, self.second.fingerprint
        return all(prints) and prints[0] != prints[1]


@dataclass(frozen=True)
class AlignedEdge:
    """An argument of an operation, in both passes or one.

    Attributes
    ----------
    parent, child
        Places in `Alignment.pairs`.
    argument, through_write
        As in `Edge`.
    in_first, in_second
        Whether that pass has the edge.
    """

    parent: int
    child: int
    argument: str
    through_write: bool
    in_first: bool
    in_second: bool


@dataclass(frozen=True)
class Alignment:
    """Two aligned forward passes.

    Attributes
    ----------
    pairs
        In the order of the second pass; an operation that only the first has stands where it ran.
    edges
        Arguments of the operations; an argument of both passes is listed once.
    """

    pairs: tuple[Pair, ...]
    edges: tuple[AlignedEdge, ...]

    def of_kind(self, kind: str) -> tuple[Pair, ...]:
        """Return the pairs of one `Pair.kind`."""
        return tuple(pair for pair in self.pairs if pair.kind == kind)

    @property
    def is_same_graph(self) -> bool:
        """Whether the two differ only in values."""
        return all(pair.kind == "same" for pair in self.pairs) and all(e.in_first and e.in_second for e in self.edges)


def align(first: Sequence[Operation], second: Sequence[Operation]) -> Alignment:
    """Align the operations of two forward passes.

    The alignment goes through the module calls, from the model's own inwards.  It first pairs items that agree in name
    and content (functions on the same parameters, module calls with the same functions inside), then, between these,
    items that agree in content, then items that agree in name.  So an operation or a module that is added, left out,
    renamed or replaced does not affect the others.
    """
    partners: dict[int, int] = {}
    waiting = [(_items(first, range(len(first)), 0), _items(second, range(len(second)), 0), 1)]
    while waiting:
        ours, theirs, depth = waiting.pop()
        for early, late in _matches(ours, theirs, (_whole, _content, _name)):
            if early.call and late.call:
                inside = _items(first, early.places, depth), _items(second, late.places, depth)
                waiting.append((*inside, depth + 1))
            else:
                partners[late.places[0]] = early.places[0]
    pairs = tuple(_in_order(first, second, partners))
    return Alignment(pairs, tuple(_edges(pairs)))


@dataclass(frozen=True)
class _Item:
    """One thing that a module call did: an operation, or an inner module call with all its operations."""

    call: str
    """Empty for an operation."""
    places: Sequence[int]
    content: Hashable
    name: Hashable


_Key = Callable[[_Item], Hashable]


def _whole(item: _Item) -> Hashable:
    return item.call, item.content, item.name


def _content(item: _Item) -> Hashable:
    return bool(item.call), item.content


def _name(item: _Item) -> Hashable:
    """Return a module call's name; for an operation, which has only content, the item itself."""
    return item.call or item


def _items(operations: Sequence[Operation], places: Iterable[int], depth: int) -> list[_Item]:
    """Return the items at one depth of module calls."""
    grouped: dict[Hashable, list[int]] = defaultdict(list)
    for place in places:
        path = operations[place].containing_module_origin_nested
        grouped[path[depth] if len(path) > depth else place].append(place)
    return [_item(operations, key if isinstance(key, str) else "", inside) for key, inside in grouped.items()]


def _item(operations: Sequence[Operation], call: str, places: list[int]) -> _Item:
    content = tuple((operations[place].layer_type, operations[place].iterable_output_index) for place in places)
    first = operations[places[0]]
    names = first.parent_param_addresses, first.buffer_address, first.constant_origin
    return _Item(call, tuple(places), content, () if call else names)


def _matches(ours: list[_Item], theirs: list[_Item], keys: tuple[_Key, ...]) -> Iterator[tuple[_Item, _Item]]:
    """Yield pairs that agree in the first key, and between them pairs that agree in the next keys; all in order."""
    if not (keys and ours and theirs):
        return
    key, *others = keys
    early = late = 0
    for a, b, size in _blocks([key(item) for item in ours], [key(item) for item in theirs]):
        yield from _matches(ours[early:a], theirs[late:b], tuple(others))
        yield from zip(ours[a : a + size], theirs[b : b + size], strict=True)
        early, late = a + size, b + size
    yield from _matches(ours[early:], theirs[late:], tuple(others))


def _blocks(first: list[Hashable], second: list[Hashable]) -> Iterator[tuple[int, int, int]]:
    """Yield equal runs, as places and length, in order; equal starts and ends are cut off before the costly part."""
    start, most = 0, min(len(first), len(second))
    while start < most and first[start] == second[start]:
        start += 1
    end = 0
    while end < most - start and first[-1 - end] == second[-1 - end]:
        end += 1
    yield 0, 0, start
    middle = first[start : len(first) - end], second[start : len(second) - end]
    for early, late in common_places(*middle):
        yield start + early, start + late, 1
    yield len(first) - end, len(second) - end, end


def _in_order(first: Sequence[Operation], second: Sequence[Operation], partners: dict[int, int]) -> Iterator[Pair]:
    taken = set(partners.values())
    alone = deque(place for place in range(len(first)) if place not in taken)
    last = -1
    for place, op in enumerate(second):
        while alone and alone[0] <= last + 1:
            last = max(last, alone[0])
            yield Pair(first[alone.popleft()], None)
        early = partners.get(place)
        last = last if early is None else max(last, early)
        yield Pair(None, op) if early is None else Pair(first[early], op, tuple(_changes(first[early], op)))
    yield from (Pair(first[place], None) for place in alone)


def _changes(before: Operation, after: Operation) -> Iterator[str]:
    """Yield what differs between two operations, apart from their parents."""
    for name, field in _COMPARED.items():
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            yield f"{name} {_value_text(old)} → {_value_text(new)}"


_COMPARED = {
    "shape": "tensor_shape",
    "dtype": "tensor_dtype",
    "device": "tensor_device",
    "function": "func_applied_name",
    "arguments": "func_position_args_non_tensor",
    "keywords": "func_keyword_args_non_tensor",
    "parameters": "parent_param_shapes",
    "in place": "function_is_inplace",
}


def _value_text(value: object) -> str:
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return ", ".join(value) or "none"
    return str(value)


def _edges(pairs: tuple[Pair, ...]) -> Iterator[AlignedEdge]:
    places: tuple[dict[str, int], dict[str, int]] = {}, {}
    for place, pair in enumerate(pairs):
        for known, op in zip(places, (pair.first, pair.second), strict=True):
            if op is not None:
                known[op.label] = known[op.layer_label_w_pass] = place
    for place, pair in enumerate(pairs):
        before, after = _arguments(pair.first, places[0]), _arguments(pair.second, places[1])
        for parent, argument, through_write in dict.fromkeys([*after, *before]):
            key = parent, argument, through_write
            yield AlignedEdge(parent, place, argument, through_write, key in before, key in after)


def _arguments(op: Operation | None, places: dict[str, int]) -> dict[tuple[int, str, bool], None]:
    edges = () if op is None else op.edges
    known = (edge for edge in edges if edge.parent in places)
    return {(places[edge.parent], edge.argument, edge.through_write): None for edge in known}


Places = tuple[int, int]
"""A place in each sequence; -1 where that sequence has no partner."""
_Part = tuple[Places, Places]
"""The places in both sequences where a part begins, and where it ends."""


def in_step(
    first: Sequence[Hashable], second: Sequence[Hashable], is_loop: Callable[[int, int, int], bool]
) -> list[Places]:
    """Return the places of both sequences in one order, with equal items of the same pass paired.

    The first item of both separates the passes of a loop: its occurrences are paired one by one, then those between.

    Parameters
    ----------
    first, second
        Keys, which are equal for the same item.
    is_loop
        ``is_loop(side, earlier, later)``: whether two places with the same key, in sequence 0 or 1, are passes of one
        loop and not two calls of one function.  Passes that only one sequence has stay unpaired.
    """
    return _with_unpaired(sorted(_Steps((first, second), is_loop).pairs()), (len(first), len(second)))


class _Steps:
    def __init__(
        self, sides: tuple[Sequence[Hashable], Sequence[Hashable]], is_loop: Callable[[int, int, int], bool]
    ) -> None:
        self._sides = sides
        self._is_loop = is_loop
        self._at: tuple[dict[Hashable, list[int]], ...] = (defaultdict(list), defaultdict(list))
        for places, side in zip(self._at, sides, strict=True):
            for place, key in enumerate(side):
                places[key].append(place)
        self._alone: tuple[set[int], set[int]] = (set(), set())

    def pairs(self) -> list[Places]:
        found: list[Places] = []
        waiting: list[_Part] = [((0, 0), (len(self._sides[0]), len(self._sides[1])))]
        while waiting:
            (start, begin), (end, stop) = waiting.pop()
            if start >= end or begin >= stop:
                continue
            if start in self._alone[0]:
                waiting.append(((start + 1, begin), (end, stop)))
                continue
            times = [self._times(0, start, (start, end)), self._times(1, start, (begin, stop))]
            pairs = list(zip(*times, strict=False))
            if not pairs:
                waiting.append(((start + 1, begin), (end, stop)))
                continue
            found += pairs
            self._leave_further_passes(times, pairs, (end, stop))
            waiting += [((a + 1, b + 1), later) for (a, b), later in pairwise([*pairs, (end, stop)])]
        return found

    def _times(self, side: int, of_first: int, part: Places) -> list[int]:
        places = self._at[side].get(self._sides[0][of_first], [])
        found = places[bisect_left(places, part[0]) : bisect_left(places, part[1])]
        return [place for place in found if place not in self._alone[side]]

    def _leave_further_passes(self, times: list[list[int]], pairs: list[Places], ends: Places) -> None:
        """Leave the passes that only one side has unpaired, up to the last item that earlier passes had too."""
        for side, (places, end) in enumerate(zip(times, ends, strict=True)):
            if len(places) > len(pairs) and self._is_loop(side, places[len(pairs) - 1], places[len(pairs)]):
                further, other = places[len(pairs)], times[1 - side]
                known = {*self._sides[side][places[0] : further], *self._sides[1 - side][other[0] : other[-1]]}
                last = next(place for place in reversed(range(end)) if self._sides[side][place] in known)
                self._alone[side].update(range(further, last + 1))


def _with_unpaired(pairs: list[Places], lengths: Places) -> list[Places]:
    """Return the pairs, and between them the unpaired places: first those of the second sequence."""
    order: list[Places] = []
    done = (-1, -1)
    for pair in [*pairs, lengths]:
        order += [(-1, place) for place in range(done[1] + 1, pair[1])]
        order += [(place, -1) for place in range(done[0] + 1, pair[0])]
        order.append(pair)
        done = pair
    return order[:-1]


_MOST = 256
"""Differences that one search allows; beyond it, the path that got furthest is taken."""


def common_places(first: Sequence[Hashable], second: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield the places of equal items in order, as many as possible; fewer where hundreds in a row differ."""
    numbers: dict[Hashable, int] = {}
    ours = [numbers.setdefault(item, len(numbers)) for item in first]
    theirs = [numbers.setdefault(item, len(numbers)) for item in second]
    start = (0, 0)
    while start[0] < len(ours) and start[1] < len(theirs):
        way, start = _way(ours, theirs, *start)
        yield from way


_Places = tuple[int, int]


def _way(ours: list[int], theirs: list[int], left: int, right: int) -> tuple[list[_Places], _Places]:
    """Return the places of equal items on the best path from a pair of places on, and where the path ends.

    ``reach[k]`` is the furthest place in `ours` of the paths that skip `k` more items of `ours` than of `theirs`.
    """
    reach = {1: left}
    steps: list[dict[int, int]] = []
    shift = left - right
    for most in range(_MOST):
        steps.append(dict(reach))
        for k in range(-most, most + 1, 2):
            x = _entry(reach, k, most)
            while x < len(ours) and 0 <= x - k - shift < len(theirs) and ours[x] == theirs[x - k - shift]:
                x += 1
            reach[k] = x
            if x >= len(ours) and x - k - shift >= len(theirs):
                return _back(steps, k, x, shift), (x, x - k - shift)
    inside = [k for k, x in reach.items() if x <= len(ours) and x - k - shift <= len(theirs) and (k - most) % 2 == 0]
    k = max(inside, key=lambda k: 2 * reach[k] - k)
    return _back(steps, k, reach[k], shift), (reach[k], reach[k] - k - shift)


def _entry(reach: dict[int, int], k: int, most: int) -> int:
    """Return the place at which a path enters a diagonal, after it skipped an item of `theirs` or `ours`."""
    return reach[k + 1] if _leaves_theirs(reach, k, most) else reach[k - 1] + 1


def _back(steps: list[dict[int, int]], k: int, x: int, shift: int) -> list[_Places]:
    found: list[_Places] = []
    for most in range(len(steps) - 1, -1, -1):
        entered = _entry(steps[most], k, most)
        found += [(place, place - k - shift) for place in range(x - 1, entered - 1, -1)]
        k, x = (k + 1, entered) if _leaves_theirs(steps[most], k, most) else (k - 1, entered - 1)
    return found[::-1]


def _leaves_theirs(reach: dict[int, int], k: int, most: int) -> bool:
    return k == -most or (k != most and reach[k - 1] < reach[k + 1])
