"""Finding a layer by label, short label, module address or place; with help where nothing is found."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.modules import Modules
from pytest_torchlens.records import close


class LookupKeyError(KeyError):
    """A key that names no layer; the message has the nearest valid ones."""

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


class Lookup:
    """Keys of the nodes; places count over `saved`, as a list's do.

    A key names one node, or all passes of one layer.
    """

    def __init__(self, nodes: list[Node], saved: list[Node], modules: Modules) -> None:
        self._nodes = nodes
        self._saved = saved
        self._by_key: dict[str, list[Node]] = {}
        self._several: dict[str, list[str]] = {}
        for node in nodes:
            short = f"{node.layer_type}_{node.layer_type_num}"
            for key in (node.label_w_pass, f"{short}:{node.pass_num}"):
                self._by_key[key] = [node]
            for key in (node.layer_label, short):
                self._by_key[key] = node.passes
            if node.kind == "buffer" and node.source is not None:
                self._enter(node.source.name, [node])
        for node in nodes:
            for call in node.exited:
                self._enter(call.label, [node])
        for address, found in self._exits(nodes).items():
            self._enter(address, found)
        self._modules = modules

    def _exits(self, nodes: list[Node]) -> dict[str, list[Node]]:
        """Return for each module address the nodes that came out of it."""
        found: dict[str, dict[int, Node]] = {}
        for node in nodes:
            for call in node.exited:
                found.setdefault(call.address, {})[id(node)] = node
        return {address: list(exits.values()) for address, exits in found.items()}

    def _enter(self, key: str, found: list[Node]) -> None:
        former = [node for node in self._by_key.get(key, []) if all(node is not other for other in found)]
        if former or any(node.passes is not found[0].passes for node in found):
            several = self._several.setdefault(key, [node.label for node in former])
            several += [node.label for node in found]
        else:
            self._by_key[key] = found

    def find(self, key: str | int) -> list[Node]:
        """Return the node that `key` names, or the passes of the layer that it names.

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
        if key in self._several:
            raise LookupKeyError(f"{key!r} stands for several layers; name one of {', '.join(self._several[key])}")
        if key not in self._by_key:
            raise unknown(key, self._by_key)
        return self._by_key[key]

    def select(self, keys: Iterable[str | int]) -> list[Node]:
        """Return the nodes that `keys` name, in execution order; text that is no key selects labels that contain it."""
        chosen = {id(node) for key in keys for node in self._matching(key)}
        return [node for node in self._nodes if id(node) in chosen]

    def _matching(self, key: str | int) -> list[Node]:
        if not isinstance(key, str) or key in self._by_key:
            return self.find(key)
        found = [node for node in self._nodes if key in node.label]
        if not found:
            hint = close(key, ["all", "none", *self._by_key]) or _KEYS
            raise LookupKeyError(f"no layer has {key!r} in its label; {hint}")
        return found

    def keys_of(self, node: Node, place: int | None) -> tuple[str | int, ...]:
        """Return the keys that find a node: places first, then names in alphabetical order."""
        names = {node.label, node.label_w_pass}
        for call in node.exited:
            names |= {key for key in (call.address, call.label) if self._by_key.get(key) == [node]}
        if node.kind == "buffer" and node.source is not None:
            names.add(node.source.name)
        places = () if place is None else (place - len(self._saved), place)
        several = set(self._several)
        return (*places, *sorted(names - several))
