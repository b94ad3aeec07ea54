"""What makes two operations equal: function, module, arguments, and the place in the code that called them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.history.graph import Node

Site = tuple[tuple[int, int], ...]


class Interned(dict[Hashable, int]):
    """A small number for each key, the same for equal keys; tuples of tuples are then compared once."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


def site_of(frames: Frames) -> Site:
    """Return the chain of code positions, innermost first; a function that calls itself stands in it once.

    Code is told apart by identity: its own equality compares all of its bytes.
    """
    if len(frames) == 2:  # noqa: PLR2004 - one frame, as nearly always
        return ((id(frames[0]), frames[1]),)  # type: ignore[return-value]
    return tuple(dict.fromkeys(zip(map(id, frames[::2]), frames[1::2], strict=True)))  # type: ignore[arg-type]


def module_key(call: ModuleCall | None) -> Hashable:
    """Return what is the same for two calls of one module; of one not registered, where it is called."""
    if call is None or not call.address.startswith("<"):
        return call and call.address
    return call.address, site_of(call.frames), module_key(call.parent)


def arguments_key(call: Call) -> Hashable:
    """Return what is equal for two calls with the same non-tensor arguments and tensors of the same shapes."""
    return tuple(map(_key, call.args)), tuple((name, _key(arg)) for name, arg in call.kwargs.items())


def _key(arg: Any) -> Hashable:
    kind = type(arg)
    if kind is Value:
        return arg.shape
    if kind is Aliased:
        return arg.value.shape
    if isinstance(arg, list | tuple):
        return kind, tuple(map(_key, arg))
    if isinstance(arg, dict):
        return kind, tuple((name, _key(item)) for name, item in arg.items())
    if kind is slice:
        return kind, _key(arg.start), _key(arg.stop), _key(arg.step)
    return (kind, arg) if isinstance(arg, Hashable) else (kind, id(arg))


class Weights:
    """The parameters that operations work on: their own, and those behind operations that read nothing else.

    A weight that is normalised or transposed before each use is the same weight each time.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self._interned = Interned()
        self._made: dict[int, int] = {}
        self._ids: dict[int, int] = {}
        self._layers = {self._layer(node) for node in nodes if node.from_input and node.parameters}
        for node in nodes:
            if not node.from_input and node.call is not None and self._is_made(node):
                rest = tuple(id(parent.source) for parent, _, _ in node.parents if parent.source is not None)
                made = node.call.info.layer_type, node.value.position, self.of(node), rest, arguments_key(node.call)
                self._made[id(node)] = self._interned[made]

    def of(self, node: Node) -> Hashable:
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
        return known and some and self._layer(node) not in self._layers

    def _layer(self, node: Node) -> Hashable:
        return node.call and node.call.info.layer_type, node.value.position, self._own(node)

    def _own(self, node: Node) -> tuple[int, ...]:
        return tuple(map(self._number, node.parameters))

    def _number(self, source: Source) -> int:
        return self._ids.setdefault(id(source), len(self._ids))
