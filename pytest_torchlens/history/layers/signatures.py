"""Signatures of operations: function, module, arguments, and the place in the code that called them.

`Operations` numbers the operations in execution order and keeps the signatures of each; `Groups` is the union of those
that were found to be one layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.source import by_identity
from pytest_torchlens.history.source import positions


class Interner(dict[Hashable, int]):
    """A small number for each key, the same for equal keys; tuples of tuples are then compared once."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


class Sites:
    """Call sites: chains of positions in the source.

    Positions and not instructions, for a compiler may write one ``while`` condition twice; where Python keeps none
    (3.10), instructions.  Code is told apart by identity: its own equality compares all of its bytes.
    """

    def __init__(self) -> None:
        self._positions: dict[int, list[tuple[int, ...]]] = {}
        self._known: dict[tuple[Any, ...], Hashable] = {}
        self._around: dict[int, Hashable] = {}

    def of(self, frames: Frames) -> Hashable:
        """Return the chain of positions, innermost first; a function that calls itself stands in it once."""
        key = by_identity(frames)
        found = self._known.get(key)
        if found is None:
            pairs = zip(frames[::2], frames[1::2], strict=True)
            found = self._known[key] = tuple(dict.fromkeys(_once_each(list(map(self._position, pairs)))))
        return found

    def around(self, call: ModuleCall | None) -> Hashable:
        """Return the chain of positions from the model's forward down to a module call, itself called once.

        Two operations with the same positions all the way down were run by a loop, or by a function calling itself.
        """
        if call is None:
            return None
        found = self._around.get(id(call))
        if found is None:
            outermost = [above for above in call.stack() if above.address == call.address][-1]
            found = self._around[id(call)] = self.of(outermost.frames), self.around(outermost.parent)
        return found

    def _position(self, frame: tuple[Any, Any]) -> tuple[int, ...]:
        code, at = frame
        known = self._positions.get(id(code))
        if known is None:
            known = self._positions[id(code)] = positions(code)
        found = known[at // 2] if known else (-1,)
        return (id(code), *found) if -1 not in found else (id(code), at)

    def module(self, call: ModuleCall | None) -> Hashable:
        """Return what is the same for two calls of one module; of one not registered, where it is called."""
        if call is None or not call.address.startswith("<"):
            return call and call.address
        return call.address, self.of(call.frames), self.module(call.parent)


def _once_each(chain: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield positions without those between a function and where the outermost call of it goes on.

    A function that stands in the chain at one position alone is no such: a decorator's wrapper is around many.
    """
    outermost = {position[0]: at for at, position in enumerate(chain)}
    at = 0
    while at < len(chain):
        yield chain[at]
        last = outermost[chain[at][0]]
        at = (last if chain[last] != chain[at] else at) + 1


def arguments_signature(call: Call) -> Hashable:
    """Return what is equal for two calls with the same non-tensor arguments and tensors of the same shapes."""
    return tuple(map(_key, call.args)), tuple((name, _key(arg)) for name, arg in call.kwargs.items())


def _key(arg: Any) -> Hashable:
    kind = type(arg)
    if kind is Value or kind is Aliased:
        shape: Hashable = value_of(arg).shape
        return shape
    if isinstance(arg, list | tuple):
        return kind, tuple(map(_key, arg))
    if isinstance(arg, dict):
        return kind, tuple((name, _key(item)) for name, item in arg.items())
    if kind is slice:
        return kind, _key(arg.start), _key(arg.stop), _key(arg.step)
    return (kind, arg) if isinstance(arg, Hashable) else (kind, id(arg))


class Weights:
    """The parameters that operations work on: their own, and those behind operations that read nothing else.

    A weight that is normalised or transposed before each use is the same weight each time.  Where nothing descends from
    an input, as in a generator, all operations are layers: none makes a weight.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self._interned = Interner()
        self._made: dict[int, int] = {}
        self._own = _OwnParameters(nodes).of
        self._layers = {self._layer(node) for node in nodes if node.from_input and node.parameters}
        generates = not any(node.from_input and node.kind == "operation" for node in nodes)
        for node in () if generates else nodes:
            if not node.from_input and node.call is not None and self._is_made(node):
                rest = tuple(id(parent.source) for parent, _, _ in node.parents if parent.source is not None)
                made = (
                    node.call.info.layer_type,
                    node.value.position,
                    self.of(node),
                    rest,
                    arguments_signature(node.call),
                )
                self._made[id(node)] = self._interned[made]

    def of(self, node: Node) -> tuple[Any, ...]:
        """Return the parameters as a key; an empty one where there are none, or the operation is part of a weight."""
        if id(node) in self._made:
            return ()
        own = self._own(node)
        made = self._made
        if not made:
            return own
        behind = tuple((path, made[id(parent)]) for parent, path, _ in node.parents if id(parent) in made)
        return (own, behind) if behind else own

    def _is_made(self, node: Node) -> bool:
        """Return whether a node makes a weight of parameters, and is not a layer that is now given a constant."""
        given = [parent for parent, _, _ in node.parents]
        known = all(parent.source is not None or id(parent) in self._made for parent in given)
        some = bool(node.parameters) or any(id(parent) in self._made for parent in given)
        return known and some and (_overwrites_its_weight(node) or self._layer(node) not in self._layers)

    def _layer(self, node: Node) -> Hashable:
        return _function(node), self._own(node)


class _OwnParameters:
    """The parameters of operations as numbers, without those that stand where another pass reads a tensor.

    A learned first state is no weight of the cell that it is given to.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self._ids: dict[int, int] = {}
        self._users: dict[Hashable, dict[tuple[tuple[int, ...], frozenset[str]], None]] = defaultdict(dict)
        self._known: dict[Hashable, tuple[int, ...]] = {}
        for node in nodes:
            for number in (own := self._all(node)):
                self._users[_function(node), number][own, _read_at(node)] = None

    def of(self, node: Node) -> tuple[int, ...]:
        own, places = self._all(node), _read_at(node)
        if len(own) < 2:  # noqa: PLR2004 - another pass has some of them
            return own
        key = _function(node), own, places
        if key not in self._known:
            self._known[key] = min(self._in_other_passes(_function(node), own, places), key=len, default=own)
        return self._known[key]

    def _in_other_passes(
        self, function: Hashable, own: tuple[int, ...], places: frozenset[str]
    ) -> Iterator[tuple[int, ...]]:
        for other, read in dict.fromkeys(user for number in own for user in self._users[function, number]):
            fewer = len(own) - len(other)
            if set(other) < set(own) and places < read and len(read) - len(places) == fewer:
                yield other

    def _all(self, node: Node) -> tuple[int, ...]:
        return tuple([self._ids.setdefault(id(source), len(self._ids)) for source in node.parameters])


def _function(node: Node) -> Hashable:
    return node.call and node.call.info.layer_type, node.value.position


def _read_at(node: Node) -> frozenset[str]:
    return frozenset([path for _, path, _ in node.parents])


def _overwrites_its_weight(node: Node) -> bool:
    return node.call is not None and any(source.value.slot in node.call.writes for source in node.parameters)


Link = tuple[int, int]
"""Argument place, the same number for the same one, and the operation."""
Links = Sequence[Sequence[Link]]


class Operations:
    """Operations in execution order; all lists go by their numbers.

    Attributes
    ----------
    nodes
        Their nodes.
    parents, children
        Argument place and number of each neighbour.
    from_input
        Whether they descend from an input; those that do not are passes only beside ones that do.
    weights
        Whether they work on parameters.
    kind
        Equal for the same function in the same module, or on the same parameters.
    site
        Equal for the same chain of code positions below the module's forward.
    key
        Equal for the same kind and, without parameters, the same site.
    place
        Equal for the same chain of code positions below the model's forward.
    shared_places
        The places that ran several functions, or one in several modules.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes: list[Node] = []
        self.from_input: list[bool] = []
        self._number: dict[int, int] = {}
        self.parents: list[list[Link]] = []
        self.children: list[list[Link]] = []
        self.weights: list[bool] = []
        self.kind: list[int] = []
        self.site: list[int] = []
        self.key: list[int] = []
        self.place: list[int] = []
        self.shared_places: set[int] = set()
        self._at: dict[int, int] = {}
        self._interned = Interner()
        self._sites = Sites()
        self._call_signatures: dict[int, int] = {}
        weights = Weights(nodes)
        for node in nodes:
            if node.kind == "operation":
                self._add(node, weights)

    def __len__(self) -> int:
        return len(self.nodes)

    def _add(self, node: Node, weights: Weights) -> None:
        assert node.call is not None  # noqa: S101 - it is an operation
        call, interned, number = node.call, self._interned, len(self.nodes)
        on = weights.of(node)
        around: Hashable = None if on else self._sites.module(call.module)
        kind = interned["kind", call.info.layer_type, node.value.position, on, around]
        site = interned["site", self._sites.of(call.frames)]
        place = interned["place", site, node.value.position, self._sites.around(call.module)]
        self._number[id(node)] = number
        self.nodes.append(node)
        self.from_input.append(node.from_input)
        self.weights.append(bool(on))
        self.kind.append(kind)
        self.site.append(site)
        self.key.append(kind if on else interned["key", kind, site])
        self.place.append(place)
        if self._at.setdefault(place, kind) != kind:
            self.shared_places.add(place)
        links = [(interned["in", path, write], self._number.get(id(parent), -1)) for parent, path, write in _read(node)]
        self.parents.append([link for link in links if link[1] >= 0])
        self.children.append([])
        for where, parent in self.parents[-1]:
            self.children[parent].append((where, number))

    def number(self, node: Node) -> int:
        """Return the number of an operation that descends from an input; -1 for any other node."""
        return self._number[id(node)] if node.from_input and node.kind == "operation" else -1

    def call_signature(self, number: int) -> int:
        """Return what is equal for the same kind with the same non-tensor arguments and shapes."""
        found = self._call_signatures.get(number)
        if found is None:
            node = self.nodes[number]
            key: Hashable = self.kind[number]
            if not self.weights[number] and node.call is not None:
                key = (key, node.value.shape, arguments_signature(node.call))
            found = self._call_signatures[number] = self._interned["call signature", key]
        return found


def _read(node: Node) -> Iterator[tuple[Node, str, bool]]:
    """Yield the parents of a node; one that a number is added to or multiplied with at either place.

    PyTorch calls ``0 + x`` and ``x + 0`` alike, and what sums up begins with a number.
    """
    yield from node.parents
    either_way = node.call is not None and node.call.info.layer_type in ("add", "mul") and not node.parameters
    if either_way and all(path == "0" for _, path, _ in node.parents):
        yield from ((parent, "1", write) for parent, _, write in node.parents)


class Groups:
    """Which operations are one layer: sets that only ever grow together."""

    def __init__(self, size: int) -> None:
        self._root = list(range(size))
        self._first = list(range(size))
        self._last = list(range(size))
        self._members: dict[int, list[int]] = {}

    def of(self, number: int) -> int:
        """Return the number that stands for the layer."""
        return self._root[number]

    def same(self, first: int, second: int) -> bool:
        """Return whether two operations are one layer."""
        return self._root[first] == self._root[second]

    def first(self, number: int) -> int:
        """Return the first operation of the layer."""
        return self._first[self._root[number]]

    def last(self, number: int) -> int:
        """Return the last operation of the layer."""
        return self._last[self._root[number]]

    def members(self, root: int) -> list[int]:
        """Return the operations of a layer."""
        return self._members.get(root, [root])

    def join(self, numbers: list[int]) -> bool:
        """Make operations one layer; return whether they were not yet."""
        roots = dict.fromkeys(self._root[number] for number in numbers)
        if len(roots) == 1:
            return False
        largest = max(roots, key=lambda root: len(self.members(root)))
        members = self._members.setdefault(largest, [largest])
        self._first[largest] = min(self._first[root] for root in roots)
        self._last[largest] = max(self._last[root] for root in roots)
        for root in roots:
            if root != largest:
                moved = self._members.pop(root, [root])
                members += moved
                for number in moved:
                    self._root[number] = largest
        return True

    def layers(self) -> list[list[int]]:
        """Return the layers of several operations, each in execution order."""
        return [sorted(members) for members in self._members.values()]
