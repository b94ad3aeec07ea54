"""Walks through the graph: ancestors, descendants, siblings, spouses, distances, paths."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from pytest_torchlens.records import Operation

Labels = tuple[str, ...]


class GraphEntry(NamedTuple):
    """The fields of an operation that are its place in the graph."""

    label: str
    parent_layers: Labels
    child_layers: Labels
    is_input_layer: bool
    is_output_layer: bool
    initialized_inside_model: bool


class NoPathError(LookupError):
    """There is no path along the edges from one layer to another."""


class Walks:
    """The graph of a history by label; all results are labels in execution order.

    Parameters
    ----------
    operations
        All operations of a history in execution order, buffers and constants included.
    """

    def __init__(self, operations: Iterable[Operation | GraphEntry]) -> None:
        operations = list(operations)
        self._labels = [op.label for op in operations]
        self._order = {label: place for place, label in enumerate(self._labels)}
        self._parents = {op.label: op.parent_layers for op in operations}
        self._children = {op.label: op.child_layers for op in operations}
        self._inputs = [op.label for op in operations if op.is_input_layer]
        self._outputs = [op.label for op in operations if op.is_output_layer]
        self._initialized = {op.label for op in operations if op.initialized_inside_model}
        self._labels_by_bits: dict[int, Labels] = {}

    def __contains__(self, label: object) -> bool:
        """Return whether there is an operation with this label."""
        return label in self._order

    def ancestors(self, labels: Iterable[str]) -> Labels:
        """Return all layers that these layers are computed from."""
        return self._reachable(labels, self._parents)

    def descendants(self, labels: Iterable[str]) -> Labels:
        """Return all layers that are computed from these layers."""
        return self._reachable(labels, self._children)

    def path(self, starts: Labels, ends: Labels) -> Labels:
        """Return a shortest path along the edges from one of `starts` to one of `ends`, both included.

        Raises
        ------
        NoPathError
            If there is no path.
        """
        came_from = dict.fromkeys(starts, "")
        waiting = deque(starts)
        while waiting:
            label = waiting.popleft()
            if label in ends:
                return self._path_to(label, came_from)
            for child in self._children[label]:
                if child not in came_from:
                    came_from[child] = label
                    waiting.append(child)
        raise NoPathError(self._no_path_message(starts, ends))

    def _path_to(self, end: str, came_from: dict[str, str]) -> Labels:
        path = [end]
        while before := came_from[path[-1]]:
            path.append(before)
        return tuple(reversed(path))

    def _no_path_message(self, starts: Labels, ends: Labels) -> str:
        start, end = ", ".join(starts), ", ".join(ends)
        if set(starts) & set(self.descendants(ends)):
            return f"no path from {start} to {end}: data flow the other way, from {end} to {start}"
        return f"no path from {start} to {end}: neither is computed from the other"

    def siblings(self, label: str) -> Labels:
        """Return the layers that share a parent with this one."""
        return self._others(label, (child for parent in self._parents[label] for child in self._children[parent]))

    def spouses(self, label: str) -> Labels:
        """Return the layers that share a child with this one."""
        return self._others(label, (parent for child in self._children[label] for parent in self._parents[child]))

    def original_ancestors(self, label: str) -> Labels:
        """Return the ancestors that have no parents: inputs, buffers, constants, tensors made inside the model."""
        return self._labels_of_bits(self._origin_bits[label])

    def output_descendants(self, label: str) -> Labels:
        """Return the model's outputs that are computed from a layer."""
        return self._labels_of_bits(self._output_bits[label])

    def initialized_parents(self, label: str) -> Labels:
        """Return the parents that were made inside the model from no other tensor."""
        return tuple(parent for parent in self._parents[label] if parent in self._initialized)

    def initialized_ancestors(self, label: str) -> Labels:
        """Return the ancestors that were made inside the model from no other tensor."""
        return self._labels_of_bits(self._origin_bits[label] & self._initialized_bits)

    def distance_from_input(self, label: str) -> tuple[int | None, int | None]:
        """Return the fewest and the most steps from an input; None if there is no path."""
        return self._from_input.get(label, (None, None))

    def distance_from_output(self, label: str) -> tuple[int | None, int | None]:
        """Return the fewest and the most steps to an output; None if there is no path."""
        return self._from_output.get(label, (None, None))

    def _reachable(self, labels: Iterable[str], neighbours: dict[str, Labels]) -> Labels:
        labels_reached: set[str] = set()
        waiting = list(labels)
        while waiting:
            for other in neighbours[waiting.pop()]:
                if other not in labels_reached:
                    labels_reached.add(other)
                    waiting.append(other)
        return tuple(sorted(labels_reached, key=self._order.__getitem__))

    def _others(self, label: str, labels: Iterable[str]) -> Labels:
        return tuple(sorted({*labels} - {label}, key=self._order.__getitem__))

    def _labels_of_bits(self, bits: int) -> Labels:
        """Return the labels at the indices of the bits that are set; neighbours often have the same bits."""
        labels = self._labels_by_bits.get(bits)
        if labels is None:
            labels = self._labels_by_bits[bits] = tuple([self._labels[index] for index in _indices(bits)])
        return labels

    @functools.cached_property
    def _initialized_bits(self) -> int:
        return sum(1 << self._order[label] for label in self._initialized)

    @functools.cached_property
    def _origin_bits(self) -> dict[str, int]:
        roots = {label for label, parents in self._parents.items() if not parents}
        return self._bits_of_marked(list(self._order), self._parents, roots)

    @functools.cached_property
    def _output_bits(self) -> dict[str, int]:
        return self._bits_of_marked(list(reversed(self._order)), self._children, set(self._outputs))

    def _bits_of_marked(self, order: list[str], sources: dict[str, Labels], marked: set[str]) -> dict[str, int]:
        """Return for each label the indices of the marked labels that lead to it, as the bits of a number."""
        bits: dict[str, int] = {}
        bit_of = {label: 1 << self._order[label] for label in marked}
        for label in order:
            own_bits = 0
            for source in sources[label]:
                own_bits |= bits[source]
                if source in bit_of:
                    own_bits |= bit_of[source]
            bits[label] = own_bits
        return bits

    @functools.cached_property
    def _from_input(self) -> dict[str, tuple[int, int]]:
        return self._distances(list(self._order), self._parents, self._inputs)

    @functools.cached_property
    def _from_output(self) -> dict[str, tuple[int, int]]:
        return self._distances(list(reversed(self._order)), self._children, self._outputs)

    @staticmethod
    def _distances(order: list[str], sources: dict[str, Labels], starts: list[str]) -> dict[str, tuple[int, int]]:
        distances: dict[str, tuple[int, int]] = dict.fromkeys(starts, (0, 0))
        for label in order:
            before = [distances[source] for source in sources[label] if source in distances]
            if not before or label in distances:
                continue
            near, far = before[0] if len(before) == 1 else (min(before)[0], max([most for _, most in before]))
            distances[label] = near + 1, far + 1
        return distances


def _indices(bits: int) -> Iterator[int]:
    """Yield the indices of the bits that are set, the lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
