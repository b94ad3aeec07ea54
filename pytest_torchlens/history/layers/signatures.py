"""Signatures of operations: function, module, arguments, and the place in the code that called them.

`Operations` numbers the operations in execution order and keeps the signatures of each; `Groups` holds which of them
are one layer so far.
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
from pytest_torchlens.history.source import position

Link = tuple[int, int]
"""A number for the argument place, and the number of the operation."""


Links = Sequence[Sequence[Link]]


class Operations:
    """Operations in execution order; all lists are indexed by their numbers.

    Attributes
    ----------
    nodes
        Their nodes.
    parents, children
        Argument place and number of each neighbour.
    from_input
        Whether they descend from an input.  Those that do not are passes only of layers with one that does.
    weights
        Whether they work on parameters.
    network
        Kind of the latest operation with parameters among an operation and its ancestors; -1 if there is none.
    kind
        Equal for the same function in the same module, or on the same parameters.  Two transforms with other steps are
        the same function if one place in the code runs both.
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
        self.network: list[int] = []
        self._latest_weights: list[int] = []
        self.kind: list[int] = []
        self.site: list[int] = []
        self.key: list[int] = []
        self.place: list[int] = []
        self.shared_places: set[int] = set()
        self._kind_at_place: dict[int, int] = {}
        self._steps_at_place: dict[int, tuple[str, ...]] = {}
        self._interner = Interner()
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
        call, interner, number = node.call, self._interner, len(self.nodes)
        parameters = weights.of(node)
        module: Hashable = None if parameters else self._sites.module(call.module)
        site = self._sites.of(call.frames)
        place = interner["place", site, node.value.position, self._sites.around(call.module)]
        steps = self._steps_at_place.setdefault(place, call.info.steps) if parameters else ()
        kind = interner["kind", call.info.layer_type, steps, node.value.position, parameters, module]
        self._number[id(node)] = number
        self.nodes.append(node)
        self.from_input.append(node.from_input)
        self.weights.append(bool(parameters))
        self.kind.append(kind)
        self.site.append(site)
        self.key.append(kind if parameters else interner["key", kind, site])
        self.place.append(place)
        if self._kind_at_place.setdefault(place, kind) != kind:
            self.shared_places.add(place)
        links = [
            (interner["in", path, write], self._number.get(id(parent), -1))
            for parent, path, write in _parents_either_way(node)
        ]
        self.parents.append([link for link in links if link[1] >= 0])
        self.children.append([])
        for where, parent in self.parents[-1]:
            self.children[parent].append((where, number))
        latest = largest(self._latest_weights, self.parents[-1])
        self._latest_weights.append(number if parameters else latest)
        self.network.append(kind if parameters else self.kind[latest] if latest >= 0 else -1)

    def number(self, node: Node) -> int:
        """Return the number of an operation that descends from an input; -1 for any other node."""
        return self._number[id(node)] if node.from_input and node.kind == "operation" else -1

    def call_signature(self, number: int) -> int:
        """Return a number that is equal for operations of one kind: same non-tensor arguments, shapes and steps."""
        signature = self._call_signatures.get(number)
        if signature is None:
            node = self.nodes[number]
            key: Hashable = self.kind[number]
            if not self.weights[number] and node.call is not None:
                key = (key, node.value.shape, node.call.info.steps, arguments_signature(node.call))
            signature = self._call_signatures[number] = self._interner["call signature", key]
        return signature


def _parents_either_way(node: Node) -> Iterator[tuple[Node, str, bool]]:
    """Yield the parents of a node; the tensor of a sum or product with a number at both argument places.

    PyTorch records ``0 + x`` as ``x + 0``, and ``sum()`` begins with a number.
    """
    yield from node.parents
    either_way = node.call is not None and node.call.info.layer_type in ("add", "mul") and not node.parameters
    if either_way and all(path == "0" for _, path, _ in node.parents):
        yield from ((parent, "1", write) for parent, _, write in node.parents)


class Sites:
    """Call sites: chains of positions in the source.

    Positions are used rather than instructions because Python may compile one ``while`` condition twice; Python 3.10
    keeps no positions, so instructions are used there.  Code objects are compared by identity: their equality compares
    all their bytes.  Each chain has a number.
    """

    def __init__(self) -> None:
        self._chains = Interner()
        self._known: dict[tuple[Any, ...], int] = {}
        self._of_calls: dict[int, int] = {}

    def of(self, frames: Frames) -> int:
        """Return the number of the chain of positions, innermost first; a recursive function is in it once."""
        key = by_identity(frames)
        number = self._known.get(key)
        if number is None:
            pairs = zip(frames[::2], frames[1::2], strict=True)
            chain = tuple(dict.fromkeys(_without_recursion(list(map(self._position, pairs)))))
            number = self._known[key] = self._chains[chain]
        return number

    def around(self, call: ModuleCall | None) -> int:
        """Return the number of the chain from the model's forward down to a module call, without recursion; or -1.

        Two operations with the same chain were run by a loop or a recursive function.
        """
        if call is None:
            return -1
        number = self._of_calls.get(id(call))
        if number is None:
            outermost = [above for above in call.stack() if above.address == call.address][-1]
            chain = "around", self.of(outermost.frames), self.around(outermost.parent)
            number = self._of_calls[id(call)] = self._chains[chain]
        return number

    def _position(self, frame: tuple[Any, Any]) -> tuple[int, ...]:
        code, at = frame
        return id(code), *(position(code, at) or (at,))

    def module(self, call: ModuleCall | None) -> Hashable:
        """Return a key of the module that is called; for an unregistered module, a key of where it is called."""
        if call is None or not call.address.startswith("<"):
            return call and call.address
        return call.address, self.of(call.frames), self.module(call.parent)


def _without_recursion(chain: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield positions; of a recursive function, skip all between its innermost and its outermost call.

    A function that is in the chain at one position only is not recursive: a decorator's wrapper is around many.
    """
    outermost = {position[0]: at for at, position in enumerate(chain)}
    at = 0
    while at < len(chain):
        yield chain[at]
        last = outermost[chain[at][0]]
        at = (last if chain[last] != chain[at] else at) + 1


def arguments_signature(call: Call) -> Hashable:
    """Return a key that is equal for calls with the same non-tensor arguments and tensor shapes."""
    return tuple(map(_argument_signature, call.args)), tuple(
        (name, _argument_signature(arg)) for name, arg in call.kwargs.items()
    )


def _argument_signature(arg: Any) -> Hashable:
    kind = type(arg)
    if kind is Value or kind is Aliased:
        shape: Hashable = value_of(arg).shape
        return shape
    if isinstance(arg, list | tuple):
        return kind, tuple(map(_argument_signature, arg))
    if isinstance(arg, dict):
        return kind, tuple((name, _argument_signature(item)) for name, item in arg.items())
    if kind is slice:
        return kind, _argument_signature(arg.start), _argument_signature(arg.stop), _argument_signature(arg.step)
    return (kind, arg) if isinstance(arg, Hashable) else (kind, id(arg))


def _numbers_by_name(call: Call | None) -> Hashable:
    named = () if call is None else call.kwargs.items()
    return tuple((name, number) for name, number in named if type(number) in (int, float))


class Weights:
    """The parameters that operations work on: their own, and those of parents that compute a weight from parameters.

    A weight that is normalised or transposed before each use is the same weight each time.  If no operation descends
    from an input, as in a generator, all operations are layers: none computes a weight.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self._interner = Interner()
        self._made_weights: dict[int, int] = {}
        self._own = _OwnParameters(nodes).of
        self._layers = {self._layer_key(node) for node in nodes if node.from_input and node.parameters}
        generates = not any(node.from_input and node.kind == "operation" for node in nodes)
        for node in () if generates else nodes:
            if not node.from_input and node.call is not None and self._is_made_weight(node):
                rest = tuple(id(parent.source) for parent, _, _ in node.parents if parent.source is not None)
                signature = (
                    node.call.info.layer_type,
                    node.value.position,
                    self.of(node),
                    rest,
                    arguments_signature(node.call),
                )
                self._made_weights[id(node)] = self._interner[signature]

    def of(self, node: Node) -> tuple[Any, ...]:
        """Return a key of the parameters; an empty one without parameters, or if the operation computes a weight."""
        if id(node) in self._made_weights:
            return ()
        own = self._own(node)
        made_weights = self._made_weights
        if not made_weights:
            return own
        behind = tuple(
            (path, made_weights[id(parent)]) for parent, path, _ in node.parents if id(parent) in made_weights
        )
        if behind and not own:  # two sums of one made weight with other factors are two steps
            return (own, behind, _numbers_by_name(node.call))
        return (own, behind) if behind else own

    def _is_made_weight(self, node: Node) -> bool:
        """Return whether a node computes a weight from parameters; False for a layer whose input is a constant."""
        parents = [parent for parent, _, _ in node.parents]
        all_from_weights = all(parent.source is not None or id(parent) in self._made_weights for parent in parents)
        any_from_weights = bool(node.parameters) or any(id(parent) in self._made_weights for parent in parents)
        return (
            all_from_weights
            and any_from_weights
            and (_overwrites_its_weight(node) or self._layer_key(node) not in self._layers)
        )

    def _layer_key(self, node: Node) -> Hashable:
        return _function(node), self._own(node)


class _OwnParameters:
    """The parameters of operations as numbers, without those at an argument where another pass reads a tensor.

    So a learned initial state is not a weight of the cell that reads it.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self._ids: dict[int, int] = {}
        self._users: dict[Hashable, dict[tuple[tuple[int, ...], frozenset[str]], None]] = defaultdict(dict)
        self._cache: dict[Hashable, tuple[int, ...]] = {}
        for node in nodes:
            for number in (own := self._all(node)):
                self._users[_function(node), number][own, _argument_paths(node)] = None

    def of(self, node: Node) -> tuple[int, ...]:
        own, paths = self._all(node), _argument_paths(node)
        if len(own) < 2:  # noqa: PLR2004 - another pass may have some of them
            return own
        key = _function(node), own, paths
        if key not in self._cache:
            self._cache[key] = min(self._in_other_passes(_function(node), own, paths), key=len, default=own)
        return self._cache[key]

    def _in_other_passes(
        self, function: Hashable, own: tuple[int, ...], own_paths: frozenset[str]
    ) -> Iterator[tuple[int, ...]]:
        for other, paths in dict.fromkeys(user for number in own for user in self._users[function, number]):
            fewer = len(own) - len(other)
            if set(other) < set(own) and own_paths < paths and len(paths) - len(own_paths) == fewer:
                yield other

    def _all(self, node: Node) -> tuple[int, ...]:
        return tuple([self._ids.setdefault(id(source), len(self._ids)) for source in node.parameters])


def _function(node: Node) -> Hashable:
    return node.call and node.call.info.layer_type, node.value.position


def _argument_paths(node: Node) -> frozenset[str]:
    return frozenset([path for _, path, _ in node.parents])


def _overwrites_its_weight(node: Node) -> bool:
    return node.call is not None and any(source.value.slot in node.call.writes for source in node.parameters)


def largest(numbers: Sequence[int], links: Sequence[Link]) -> int:
    """Return the largest of the numbers of linked operations; -1 if there are none."""
    if len(links) == 1:  # nearly always, where each costs
        return numbers[links[0][1]]
    return max([numbers[other] for _, other in links], default=-1)


class Interner(dict[Hashable, int]):
    """Gives each key a small number, equal keys the same one; so nested tuples are compared only once."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


class Groups:
    """Which operations are one layer: a union-find structure."""

    def __init__(self, size: int) -> None:
        self._root = list(range(size))
        self._first = list(range(size))
        self._last = list(range(size))
        self._members: dict[int, list[int]] = {}

    def of(self, number: int) -> int:
        """Return the number of the layer, which is that of one of its operations."""
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
        """Make operations one layer; return False if they already were."""
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
