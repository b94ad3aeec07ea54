"""Finds what the keys of an edit name: a value, a part of a tensor, what a single operation reads of it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.values import base_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history.lookup import LookupKeyError
from pytest_torchlens.records import close
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
        index = "" if self.index is None else f" {_text(self.index)}"
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

    def __getitem__(self, index: Any) -> Part:
        """Return the key for what is at an index."""
        part = Part(self.key, self.operation)
        part.index = index
        return part

    def __repr__(self) -> str:
        """Return it as in Python's code."""
        names = ", ".join(map(repr, [self.key, self.operation][: 1 + (self.operation is not None)]))
        return f"Part({names})" + ("" if self.index is None else f"{_text(self.index)}")


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
    name, consumer, index = _parts(key, at)
    values = subgraph.swappable(name)
    found = [Place(label, value) for label, value in values]
    if consumer is not None:
        found = [edge for place in found for edge in _edges(subgraph, place, consumer)]
        if not found:
            raise LookupKeyError(_no_edge(subgraph, values, consumer))
    return [_with_index(place, index) for place in found]


def without_index(place: Place) -> Place:
    """Return a place with the whole tensor."""
    return Place(place.label, place.value, place.consumer, place.consumer_label)


def _parts(key: Any, at: Any) -> tuple[Any, str | None, Any]:
    """Return the name, consumer and index that a key consists of."""
    if isinstance(key, Part):
        return key.key, key.operation, at if key.index is None else key.index
    if not isinstance(key, tuple):
        return key, None, at
    name, *others = key
    consumer = others.pop(0) if others and isinstance(others[0], str) else None
    if len(others) > 1 or (consumer is None and not others):
        raise LookupKeyError(f"expected (key, consumer), (key, index) or (key, consumer, index), got {key!r:.80}")
    if others and at is not None:
        raise ValueError(f"edit of {name!r}: the index stands in the key and in at=; give one of them")
    return name, consumer, others[0] if others else at


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


_DIMENSIONS = {"example": 0, "channel": 1, "position": -2, "feature": -1, "head": -3}
"""Dimensions by name; a head of ``(number, of)`` is a part of the last one."""


def _with_index(place: Place, index: Any) -> Place:
    """Return a place inside a tensor; raises if there is nothing at the index."""
    if index is None:
        return place
    shape = tuple(place.value.shape)
    index = _by_name(place.label, shape, index) if isinstance(index, Mapping) else index
    index = torch.as_tensor(index) if isinstance(index, list) else index
    index = substitute(index, lambda part: part.cpu() if isinstance(part, torch.Tensor) else part)
    try:
        part = torch.zeros(shape, dtype=torch.bool)[index]
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"edit of {place.label}: [{_text(index)[1:-1]}] does not fit shape {list(shape)}: {error}"
        ) from None
    if not part.numel():
        raise ValueError(f"edit of {place.label}: nothing is at {_text(index)} of shape {list(shape)}")
    return Place(place.label, place.value, place.consumer, place.consumer_label, index)


def _by_name(label: str, shape: tuple[int, ...], at: Mapping[str, Any]) -> Any:
    """Return the index for ``{"position": 3, "feature": 7}``."""
    if "mask" in at:
        if len(at) > 1:
            raise ValueError(f"edit of {label}: a mask goes alone")
        mask = torch.as_tensor(at["mask"])
        if mask.dtype is not torch.bool:
            raise TypeError(f"edit of {label}: expected a mask of booleans, such as mask > 0, got {mask.dtype}")
        try:
            return mask.expand(shape)
        except RuntimeError:
            raise ValueError(
                f"edit of {label}: a mask of shape {list(mask.shape)} does not fit shape {list(shape)}"
            ) from None
    index: list[Any] = [slice(None)] * len(shape)
    for name, given in at.items():
        dimension, where = _dimension(label, shape, name, given)
        if index[dimension] != slice(None):
            raise ValueError(f"edit of {label}: {name} is a dimension of {list(shape)} that another name has taken")
        index[dimension] = where
    return tuple(index)


def _dimension(label: str, shape: tuple[int, ...], name: str, where: Any) -> tuple[int, Any]:
    if name not in _DIMENSIONS:
        hint = close(name, [*_DIMENSIONS, "mask"]) or f"there are: {', '.join([*_DIMENSIONS, 'mask'])}"
        raise ValueError(f"edit of {label}: no part of a tensor is called {name!r}; {hint}")
    if name == "head" and isinstance(where, tuple):
        number, of = where
        if shape[-1] % of:
            raise ValueError(f"edit of {label}: {shape[-1]} features are not {of} heads of equal size")
        size = shape[-1] // of
        if not -of <= number < of:
            raise ValueError(f"edit of {label}: there is no head {number} of {of}")
        return -1, slice(number % of * size, (number % of + 1) * size)
    dimension = _DIMENSIONS[name]
    if not -len(shape) <= dimension < len(shape):
        raise ValueError(f"edit of {label}: shape {list(shape)} has no dimension for {name}")
    return dimension, where


def _text(index: Any) -> str:
    """Return an index as in Python's code: ``"[:, 0]"``."""
    parts = index if isinstance(index, tuple) else (index,)
    return f"[{', '.join(map(_part_text, parts))}]"


def _part_text(part: Any) -> str:
    if isinstance(part, slice):
        step = "" if part.step is None else f":{part.step}"
        return f"{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}{step}"
    if isinstance(part, torch.Tensor):
        if part.dtype is torch.bool:
            return f"a mask of {int(part.sum())}"
        return f"{part.tolist()}" if part.numel() <= _MOST_SHOWN else f"{part.numel():,} indices"
    return "..." if part is ... else str(part)


_MOST_SHOWN = 16
"""The length of a list of indices that is shown."""
