"""Finds layers by label, short label, module address, index or query; an unknown key gets the nearest valid one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any
from typing import Generic
from typing import TypeVar

import torch

from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.records import close
from pytest_torchlens.records import nearest

Thing = TypeVar("Thing")


class LookupKeyError(KeyError):
    """A key that no layer has, or a name that is not tracked; the message has the nearest valid ones."""

    def __str__(self) -> str:
        """Return the message itself, not its repr as `KeyError` does."""
        return str(self.args[0])


_KEYS = "a layer label (conv2d_3_7 or conv2d_3), a module address (features.6) or an index (7, -5)"


def is_key(key: object) -> bool:
    """Return whether `key` has the type of a key: text, or a whole number, also one of NumPy."""
    return isinstance(key, str | Integral) and not isinstance(key, bool)


def valid_key(key: Any) -> str | int:
    """Return a key as text or int; raise `LookupKeyError` if it has another type."""
    if type(key) is str:
        return key
    if not is_key(key):
        raise LookupKeyError(f"expected {_KEYS}, got {key!r:.80}")
    return key if isinstance(key, str) else int(key)


def unknown_key_error(key: str, keys: Iterable[str]) -> LookupKeyError:
    """Return the error for a key that no layer has, with the nearest valid keys."""
    return LookupKeyError(f"no layer {key!r}; {close(key, keys) or f'expected {_KEYS}'}")


@dataclass(eq=False)  # not frozen: one is made of every node, and that takes four times as long
class LookupEntry(Generic[Thing]):
    """A node, or an operation read from disk, with its names.

    Attributes
    ----------
    layer, short_label, pass_num, label
        Labels of its layer, its pass, and its own label: with the pass if its layer has several.
    own_names
        Other names of it alone: a buffer's address, the module calls that return it.
    modules
        Addresses of the modules that return it.
    """

    thing: Thing
    layer: str
    short_label: str
    pass_num: int
    label: str
    own_names: tuple[str, ...]
    modules: tuple[str, ...]

    @property
    def labels(self) -> set[str]:
        """Return the label of its layer, with and without the pass."""
        return {self.layer, f"{self.layer}:{self.pass_num}"}

    @property
    def single_names(self) -> set[str]:
        """Return the names of this pass alone."""
        return {f"{self.short_label}:{self.pass_num}", *self.own_names}


def entry_of_node(node: Node) -> LookupEntry[Node]:
    """Return a node with its names."""
    short = f"{node.layer_type}_{node.layer_type_num}"
    buffer = [node.source.name] if node.kind == "buffer" and node.source is not None else []
    calls, modules = [call.label for call in node.exited], tuple(call.address for call in node.exited)
    return LookupEntry(node, node.layer_label, short, node.pass_num, node.label, (*buffer, *calls), modules)


class Lookup(Generic[Thing]):
    """Finds operations by key; an index counts the operations in `saved`, as in a list.

    A key names one operation, or all passes of one layer.  If a label is also an address, it names the layer.
    """

    def __init__(self, things: Iterable[LookupEntry[Thing]], saved: Sequence[Thing]) -> None:
        self._saved = saved
        self._labels: dict[str, list[LookupEntry[Thing]]] = {}
        self._other_names: dict[str, list[LookupEntry[Thing]]] = {}
        self._single_names: set[str] = set()
        for entry in things:
            single_names = entry.single_names
            for label in entry.labels:
                self._labels.setdefault(label, []).append(entry)
            for other in {entry.short_label, *entry.modules, *single_names}:
                self._other_names.setdefault(other, []).append(entry)
            self._single_names |= single_names

    def _by_key(self, key: str) -> list[LookupEntry[Thing]]:
        return self._labels.get(key) or self._other_names.get(key, [])

    def _ambiguous_labels(self, key: str) -> list[str]:
        """Return the labels of all matches of `key` if it matches several layers, else ``[]``."""
        matches = self._by_key(key)
        is_single = key in self._single_names and key not in self._labels
        is_clear = len(matches) == 1 or (not is_single and len({entry.layer for entry in matches}) == 1)
        return [] if is_clear else [entry.label for entry in matches]

    @property
    def _keys(self) -> dict[str, object]:
        return {**self._labels, **self._other_names}

    def find(self, key: str | int) -> list[Thing]:
        """Return the operation that `key` names, or the passes of the layer that it names.

        Raises
        ------
        LookupKeyError
            If no layer has the key, or several have.
        IndexError
            If an index is beyond the saved layers.
        """
        if type(key) is str and len(matches := self._by_key(key)) == 1:  # nearly always
            return [matches[0].thing]
        key = valid_key(key)
        if isinstance(key, int):
            if not -len(self._saved) <= key < len(self._saved):
                raise IndexError(f"layer {key} is out of range: {len(self._saved)} layers are saved")
            return [self._saved[key]]
        matches = self._by_key(key)
        if not matches:
            raise unknown_key_error(key, self._keys)
        if labels := self._ambiguous_labels(key):
            raise LookupKeyError(f"{key!r} matches several layers; name one of {', '.join(labels)}")
        return [entry.thing for entry in matches]

    def __contains__(self, key: object) -> bool:
        """Return whether `key` names one operation or layer."""
        try:
            return bool(self.find(valid_key(key)))
        except (LookupKeyError, IndexError):
            return False

    def matching(self, key: str | int) -> list[Thing]:
        """Return all matches of `key`, also of several layers; without any, all with the text in their labels."""
        if not isinstance(key, str):
            return self.find(key)
        everything = (entry for layer in self._labels.values() for entry in layer)
        matches = self._by_key(key) or [entry for entry in everything if key in entry.label]
        if not matches:
            hint = close(key, ["all", "none", *self._keys]) or f"expected {_KEYS}"
            raise LookupKeyError(f"no layer has {key!r} in its label; {hint}")
        return [entry.thing for entry in matches]

    def keys_of(self, entry: LookupEntry[Thing], index: int | None) -> tuple[str | int, ...]:
        """Return the keys that find an operation: indices first, then names in alphabetical order."""
        others = (*entry.own_names, *entry.modules)
        names = {key for key in others if self._names_only(key, entry.thing)} if others else ()
        indices = () if index is None else (index - len(self._saved), index)
        return (*indices, *sorted({entry.label, f"{entry.layer}:{entry.pass_num}", *names}))

    def _names_only(self, key: str, thing: Thing) -> bool:
        matches = self._by_key(key)
        return len(matches) == 1 and matches[0].thing is thing


ByLabel = Mapping[str, LoggedOperation]


@dataclass(frozen=True)
class Query:
    """Selects layers that match all given attributes.  Text may have the wildcards ``*``, ``?`` and ``[...]``.

    Attributes
    ----------
    func
        Layer type (``"conv2d"``, ``"*pool*"``) or the function's name.
    module
        Address of a module around it (``"layer3.*"``), or one call of it (``"cell:2"``).
    label
        The layer's label: ``"conv2d_1*"``.
    followed_by, preceded_by
        What one of its children, or parents, matches: a layer type, or another query.
    dtype
        The tensor's dtype: ``torch.float16``, or as text, ``"float*"``.
    shape
        The tensor's shape; None matches any size: ``(None, 64, None, None)``.
    with_params
        Whether it computes with parameters.

    Raises
    ------
    TypeError
        If an attribute has another type.

    Examples
    --------
    >>> pools_after_relu = Query(func="*pool*", preceded_by="relu")
    """

    func: str | None = None
    module: str | None = None
    label: str | None = None
    followed_by: str | Query | None = None
    preceded_by: str | Query | None = None
    dtype: str | torch.dtype | None = None
    shape: tuple[int | None, ...] | None = None
    with_params: bool | None = None

    def __post_init__(self) -> None:
        """Check the types of the attributes."""
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None and not isinstance(value, _TYPES.get(name, str)):
                hint = "; for a condition, filter history.operations" if callable(value) else ""
                raise TypeError(f"{name} of a query: expected {_EXPECTED.get(name, 'text')}, got {value!r:.80}{hint}")
        sizes: Iterable[object] = self.shape or ()
        if odd := [size for size in sizes if not isinstance(size, int | None)]:
            raise TypeError(f"shape of a query: expected whole numbers, or None for any size, got {odd[0]!r:.80}")

    def select(self, operations: Iterable[LoggedOperation]) -> list[LoggedOperation]:
        """Return the operations that match, out of all operations of a history; an empty list says why in its repr."""
        by_label = {op.label: op for op in operations}
        return [op for op in by_label.values() if self.holds(op, by_label)] or NothingFound(self._why_none(by_label))

    def _why_none(self, by_label: ByLabel) -> str:
        names = {
            "func": {name for op in by_label.values() for name in (op.layer_type, op.func_applied_name)},
            "module": {
                _CALL_NUMBER.sub("", call) for op in by_label.values() for call in op.containing_module_origin_nested
            },
            "label": {op.layer_label for op in by_label.values()},
        }
        for attribute, known in names.items():
            wanted = getattr(self, attribute)
            alone = Query(**{attribute: wanted})
            if wanted is not None and not any(alone.holds(op, by_label) for op in by_label.values()):
                return f"no operation has {attribute}={wanted!r}; {nearest(wanted, filter(None, known))}"
        return "no operation has all of these attributes"

    def holds(self, op: LoggedOperation, by_label: ByLabel) -> bool:
        """Return whether an operation matches; `by_label` has all operations of its history."""
        return self._matches_operation(op) and self._matches_context(op, by_label)

    def _matches_operation(self, op: LoggedOperation) -> bool:
        return (
            _any_matches([op.layer_type, op.func_applied_name], self.func)
            and _any_matches([op.layer_label, op.layer_label_w_pass], self.label)
            and _any_matches([op.tensor_dtype, op.tensor_dtype.removeprefix("torch.")], _name_of(self.dtype))
            and _shape_matches(op.tensor_shape, self.shape)
            and self.with_params in (None, op.computed_with_params)
        )

    def _matches_context(self, op: LoggedOperation, by_label: ByLabel) -> bool:
        calls = op.containing_module_origin_nested
        addresses = [_CALL_NUMBER.sub("", call) for call in calls]
        return (
            _any_matches([*calls, *addresses], self.module)
            and _any_neighbour_matches(self.followed_by, op.child_layers, by_label)
            and _any_neighbour_matches(self.preceded_by, op.parent_layers, by_label)
        )


class NothingFound(list[LoggedOperation]):
    """The empty list; consoles, and pytest where an assertion fails, show why nothing was found."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why

    def __repr__(self) -> str:
        """Return the empty list, and why it is empty."""
        return f"[] ({self._why})"


_CALL_NUMBER = re.compile(r":\d+$")
"""The number at the end of a module call; an address may contain colons too."""

_TYPES: dict[str, Any] = {
    "followed_by": str | Query,
    "preceded_by": str | Query,
    "dtype": str | torch.dtype,
    "shape": tuple | list,
    "with_params": bool,
}
_EXPECTED = {
    "followed_by": "text or a Query",
    "preceded_by": "text or a Query",
    "dtype": "a torch.dtype or text",
    "shape": "sizes, as in (None, 64, None, None)",
    "with_params": "True or False",
}


def query(func: str | None, wanted: dict[str, Any]) -> Query:
    """Return a query of these attributes.

    Raises
    ------
    TypeError
        If there is no such attribute; the message has the nearest one.
    """
    for name in wanted:
        if name not in Query.__dataclass_fields__:
            raise TypeError(
                f"expected an attribute of a query, got {name!r}; {nearest(name, Query.__dataclass_fields__)}"
            )
    return Query(func=func, **wanted)


def _name_of(dtype: str | torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype)


def _any_matches(names: Iterable[str], pattern: str | None) -> bool:
    return pattern is None or any(fnmatchcase(name, pattern) for name in names)


def _shape_matches(shape: tuple[int, ...], wanted: tuple[int | None, ...] | None) -> bool:
    if wanted is None:
        return True
    return len(shape) == len(wanted) and all(size in (None, actual) for actual, size in zip(shape, wanted, strict=True))


def _any_neighbour_matches(wanted: str | Query | None, labels: Iterable[str], by_label: ByLabel) -> bool:
    if wanted is None:
        return True
    query = wanted if isinstance(wanted, Query) else Query(func=wanted)
    return any(query.holds(by_label[label], by_label) for label in labels)
