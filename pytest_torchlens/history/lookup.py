"""Finding a layer by label, short label, module address or place; with help where nothing is found."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any
from typing import Generic
from typing import TypeVar

from pytest_torchlens.history.graph import Node
from pytest_torchlens.records import close

Thing = TypeVar("Thing")


class LookupKeyError(KeyError):
    """A key that names no layer, or a name that is not tracked; the message has the nearest valid ones."""

    def __str__(self) -> str:
        """Return the message itself, not its repr as `KeyError` does."""
        return str(self.args[0])


_KEYS = "keys are labels (conv2d_3_7 or conv2d_3), module addresses (features.6) and places (7, -5)"


def is_key(key: object) -> bool:
    """Return whether something may be a key: text, or a whole number, NumPy's too."""
    return isinstance(key, str | Integral) and not isinstance(key, bool)


def checked(key: Any) -> str | int:
    """Return a key as text or int; raise `LookupKeyError` for what can be none of any history."""
    if not is_key(key):
        raise LookupKeyError(f"{key!r:.80} is no key; {_KEYS}")
    return key if isinstance(key, str) else int(key)


def unknown(key: str, keys: Iterable[str]) -> LookupKeyError:
    """Return the error for a key that names no layer, with the nearest that do."""
    return LookupKeyError(f"no layer {key!r}; {close(key, keys) or _KEYS}")


@dataclass(frozen=True, eq=False)
class Named(Generic[Thing]):
    """A node, or an operation read from disk, with what it goes by.

    Attributes
    ----------
    layer, short, pass_num, label
        Labels of its layer, its pass, and its own label: with the pass where its layer has several.
    own
        Other names of it alone: a buffer's address, module calls that it came out of.
    modules
        Addresses of the modules that it came out of.
    """

    thing: Thing
    layer: str
    short: str
    pass_num: int
    label: str
    own: tuple[str, ...]
    modules: tuple[str, ...]

    @property
    def labels(self) -> set[str]:
        """Return its labels, and its layer's."""
        return {self.layer, f"{self.layer}:{self.pass_num}"}

    @property
    def names_of_one(self) -> set[str]:
        """Return what names it and no other pass of its layer."""
        return {f"{self.short}:{self.pass_num}", *self.own}


def named_node(node: Node) -> Named[Node]:
    """Return a node with its names."""
    short = f"{node.layer_type}_{node.layer_type_num}"
    buffer = [node.source.name] if node.kind == "buffer" and node.source is not None else []
    calls, modules = [call.label for call in node.exited], tuple(call.address for call in node.exited)
    return Named(node, node.layer_label, short, node.pass_num, node.label, (*buffer, *calls), modules)


class Lookup(Generic[Thing]):
    """Keys of what a graph has, in execution order; places count over `saved`, as a list's do.

    A key names one thing, or all passes of one layer.  A label names what has it, whatever else goes by the same name.
    """

    def __init__(self, things: Iterable[Named[Thing]], saved: Sequence[Thing]) -> None:
        self._saved = saved
        self._labels: dict[str, list[Named[Thing]]] = {}
        self._others: dict[str, list[Named[Thing]]] = {}
        self._of_one: set[str] = set()
        for named in things:
            for label in named.labels:
                self._labels.setdefault(label, []).append(named)
            for other in {named.short, *named.modules} | named.names_of_one:
                self._others.setdefault(other, []).append(named)
            self._of_one |= named.names_of_one

    def _by_key(self, key: str) -> list[Named[Thing]]:
        return self._labels.get(key) or self._others.get(key, [])

    def _several(self, key: str) -> list[str]:
        """Return the labels of what `key` stands for, where that is too much."""
        found = self._by_key(key)
        one = key in self._of_one and key not in self._labels
        is_clear = len(found) == 1 or (not one and len({named.layer for named in found}) == 1)
        return [] if is_clear else [named.label for named in found]

    @property
    def _keys(self) -> dict[str, object]:
        return {**self._labels, **self._others}

    def find(self, key: str | int) -> list[Thing]:
        """Return the thing that `key` names, or the passes of the layer that it names.

        Raises
        ------
        LookupKeyError
            If there is none, or if it names several layers.
        IndexError
            If a place is beyond the saved layers.
        """
        key = checked(key)
        if isinstance(key, int):
            if not -len(self._saved) <= key < len(self._saved):
                raise IndexError(f"layer {key} is out of range: {len(self._saved)} layers are saved")
            return [self._saved[key]]
        found = self._by_key(key)
        if not found:
            raise unknown(key, self._keys)
        if several := self._several(key):
            raise LookupKeyError(f"{key!r} stands for several layers; name one of {', '.join(several)}")
        return [named.thing for named in found]

    def __contains__(self, key: object) -> bool:
        """Return whether `key` names one thing or layer."""
        try:
            return is_key(key) and bool(self.find(checked(key)))
        except (LookupKeyError, IndexError):
            return False

    def matching(self, key: str | int) -> list[Thing]:
        """Return all that `key` stands for, several layers too; text that is no key: all with it in their labels."""
        if not isinstance(key, str):
            return self.find(key)
        everything = (named for layer in self._labels.values() for named in layer)
        found = self._by_key(key) or [named for named in everything if key in named.label]
        if not found:
            hint = close(key, ["all", "none", *self._keys]) or _KEYS
            raise LookupKeyError(f"no layer has {key!r} in its label; {hint}")
        return [named.thing for named in found]

    def keys_of(self, named: Named[Thing], place: int | None) -> tuple[str | int, ...]:
        """Return the keys that find a thing: places first, then names in alphabetical order."""
        names = {key for key in (*named.own, *named.modules) if self._names_only(key, named.thing)}
        places = () if place is None else (place - len(self._saved), place)
        return (*places, *sorted({named.label, f"{named.layer}:{named.pass_num}"} | names))

    def _names_only(self, key: str, thing: Thing) -> bool:
        found = self._by_key(key)
        return len(found) == 1 and found[0].thing is thing
