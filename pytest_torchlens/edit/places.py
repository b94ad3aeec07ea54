"""Finds what the keys of an edit name: a value, a part of a tensor, what a single operation reads of it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.values import base_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.edit.indices import index_for
from pytest_torchlens.edit.indices import text_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.lookup import LookupKeyError
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay import Subgraph


@dataclass(frozen=True)
class Place:
    """What one edit changes.

    Attributes
    ----------
    label
        Label of the value, or the parameter's name.
    value
        The value.
    consumer
        Number of the only call that is to see the change; None for all.
    consumer_label
        Its label; ``""`` for all.
    index
        What of the tensor changes, as in ``tensor[index]``; None for all of it.
    """

    label: str
    value: Value
    consumer: int | None = None
    consumer_label: str = ""
    index: Any = None

    @property
    def text(self) -> str:
        """The place in words: ``"relu_3_8 [:, 0] as add_2_9 reads it"``."""
        index = "" if self.index is None else f" {text_of(self.index)}"
        return f"{self.label}{index}" + (f" as {self.consumer_label} reads it" if self.consumer_label else "")


class Part:
    """A key of an edit that names a part of a tensor: ``Part("relu_1")[:, 3]``, ``Part("relu_1", channel=3)``.

    A tuple with a slice inside cannot be a key of a dict before Python 3.12; this can.

    Parameters
    ----------
    key
        A key of the history.
    operation
        The only operation that is to see the change; None (default) for all.
    **at
        The part by name, as `ModelHistory.edit` has it: ``example``, ``channel``, ``position``, ``feature``, ``head``,
        ``mask``.
    """

    def __init__(self, key: str | int, operation: str | None = None, **at: Any) -> None:
        self.key = key
        self.operation = operation
        self.index: Any = at or None

    @classmethod
    def of(cls, key: str | int, operation: str | None, index: Any) -> Part:
        """Return the key for an index that may be None, or a mapping from names."""
        part = cls(key, operation)
        part.index = index
        return part

    def __getitem__(self, index: Any) -> Part:
        """Return the key for what is at an index."""
        if self.index is not None:
            raise ValueError(f"{self!r} names a part already: give one index, or all names at once")
        return Part.of(self.key, self.operation, index)

    def __repr__(self) -> str:
        """Return it as in Python's code."""
        names = ", ".join(map(repr, [self.key, self.operation][: 1 + (self.operation is not None)]))
        return f"Part({names})" + ("" if self.index is None else f"{text_of(self.index)}")


def places_of(subgraph: Subgraph, key: Any, at: Any = None) -> list[Place]:
    """Return what a key names, one place for each pass of its layer, in order.

    Parameters
    ----------
    subgraph
        The whole graph.
    key
        A key of the history or a parameter's name; ``(key, consumer)`` for what only that operation reads;
        ``(key, index)``, ``(key, consumer, index)`` or a `Part` for a part of the tensor.
    at
        The index of a key that has none.

    Raises
    ------
    LookupKeyError
        If there is no such key, or `consumer` does not read it.
    ValueError, TypeError
        If the index does not fit the tensor.
    """
    name, consumer, index = parts_of(key, at)
    values = subgraph.swappable(name)
    found = [Place(label, value) for label, value in values]
    if consumer is not None:
        found = [edge for place in found for edge in _edges(subgraph, place, consumer)]
        if not found:
            raise LookupKeyError(_no_edge(subgraph, values, consumer))
    return [_with_index(place, index) for place in found]


def without_index(place: Place) -> Place:
    """Return a place with the whole tensor."""
    return replace(place, index=None)


def parts_of(key: Any, at: Any = None) -> tuple[Any, str | None, Any]:
    """Return the name, consumer and index that a key consists of; `at` is the index of one that has none."""
    if isinstance(key, Part):
        name, consumer, index = key.key, key.operation, key.index
    elif isinstance(key, tuple) and key:
        name, *others = key
        consumer = others.pop(0) if others and isinstance(others[0], str) else None
        if len(others) > 1 or (consumer is None and not others):
            raise LookupKeyError(f"expected (key, consumer), (key, index) or (key, consumer, index), got {key!r:.80}")
        index = others[0] if others else None
    else:
        name, consumer, index = key, None, None
    return name, consumer, at if index is None else index


def _edges(subgraph: Subgraph, place: Place, consumer: str) -> Iterator[Place]:
    """Yield the places where operations of a key read a value."""
    calls = subgraph.recording.calls
    nodes = subgraph.nodes_of(consumer)
    if others := [node.label for node in nodes if node.call is None]:
        raise LookupKeyError(f"expected an operation that reads {place.label}, got {others[0]!r}, which is none")
    for number in dict.fromkeys(node.number for node in nodes):
        reads = [read for _, read in edges_in(calls[number])]
        if any(value_of(read) is place.value for read in reads):
            label = next(node.label for node in nodes if node.number == number)
            if place.value.slot in calls[number].writes:
                raise NotReplayableError(f"{label} overwrites {place.label}: edit {place.label} for all, or {label}")
            yield Place(place.label, place.value, number, label)
        elif any(base_of(read) is place.value for read in reads):
            raise NotReplayableError(f"{consumer} reads {place.label} through a view made earlier: edit it for all")


def _no_edge(subgraph: Subgraph, values: list[tuple[str, Value]], consumer: str) -> str:
    ids = {id(value) for _, value in values}
    calls = [(node.label, node.call) for node in subgraph.history.nodes if node.call is not None]
    readers = [label for label, call in calls if ids & {id(value_of(read)) for _, read in edges_in(call)}]
    return f"{consumer!r} does not read {values[0][0]}; what does: {', '.join(readers) or 'nothing'}"


def _with_index(place: Place, index: Any) -> Place:
    """Return a place inside a tensor; raises if there is nothing at the index."""
    if index is None:
        return place
    return replace(place, index=index_for(place.label, tuple(place.value.shape), index))


def places_in(history: ModelHistory, keys: Iterable[Any], at: Any = None) -> list[Place]:
    """Return the places that keys name in a history; raise if they are not in a list."""
    if isinstance(keys, str | Mapping) or not isinstance(keys, Iterable):
        raise TypeError(f"expected keys of the history in a list, got {keys!r:.80}")
    whole = Subgraph(history)
    return [place for key in keys for place in places_of(whole, key, at)]


def whole_places(name: str, places: list[Place]) -> list[Place]:
    """Return places; raise if one is a part, or what a single operation reads."""
    for place in places:
        if place.index is not None or place.consumer is not None:
            raise ValueError(f"{name}: expected keys of whole activations, got {place.text}: name {place.label!r}")
    return places
