"""The operations by number, with what is needed to tell which are equal."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Sequence

from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.likeness import Interned
from pytest_torchlens.history.likeness import Sites
from pytest_torchlens.history.likeness import Weights
from pytest_torchlens.history.likeness import arguments_key

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
    counts
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
        self.counts: list[bool] = []
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
        self._interned = Interned()
        self._sites = Sites()
        self._alike: dict[int, int] = {}
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
        self.counts.append(node.from_input)
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

    def alike(self, number: int) -> int:
        """Return what is equal for the same kind with the same non-tensor arguments and shapes."""
        found = self._alike.get(number)
        if found is None:
            node = self.nodes[number]
            key: Hashable = self.kind[number]
            if not self.weights[number] and node.call is not None:
                key = (key, node.value.shape, arguments_key(node.call))
            found = self._alike[number] = self._interned["alike", key]
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
