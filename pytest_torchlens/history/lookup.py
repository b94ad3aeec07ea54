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
    """A key that names no layer, or a name that is not tracked; the message has the nearest valid ones."""

    def __str__(self) -> str:
        """Return the message itself, not its repr as `KeyError` does."""
        return str(self.args[0])


_KEYS = "a layer label (conv2d_3_7 or conv2d_3), a module address (features.6) or an index (7, -5)"


def is_key(key: object) -> bool:
    """Return whether something may be a key: text, or a whole number, NumPy's too."""
    return isinstance(key, str | Integral) and not isinstance(key, bool)


def valid_key(key: Any) -> str | int:
    """Return a key as text or int; raise `LookupKeyError` for what can be none of any history."""
    if not is_key(key):
        raise LookupKeyError(f"expected {_KEYS}, got {key!r:.80}")
    return key if isinstance(key, str) else int(key)


def unknown_key_error(key: str, keys: Iterable[str]) -> LookupKeyError:
    """Return the error for a key that names no layer, with the nearest that do."""
    return LookupKeyError(f"no layer {key!r}; {close(key, keys) or f'expected {_KEYS}'}")


@dataclass(frozen=True, eq=False)
class LookupEntry(Generic[Thing]):
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


def entry_of_node(node: Node) -> LookupEntry[Node]:
    """Return a node with its names."""
    short = f"{node.layer_type}_{node.layer_type_num}"
    buffer = [node.source.name] if node.kind == "buffer" and node.source is not None else []
    calls, modules = [call.label for call in node.exited], tuple(call.address for call in node.exited)
    return LookupEntry(node, node.layer_label, short, node.pass_num, node.label, (*buffer, *calls), modules)


class Lookup(Generic[Thing]):
    """Keys of what a graph has, in execution order; places count over `saved`, as a list's do.

    A key names one thing, or all passes of one layer.  A label names what has it, whatever else goes by the same name.
    """

    def __init__(self, things: Iterable[LookupEntry[Thing]], saved: Sequence[Thing]) -> None:
        self._saved = saved
        self._labels: dict[str, list[LookupEntry[Thing]]] = {}
        self._others: dict[str, list[LookupEntry[Thing]]] = {}
        self._of_one: set[str] = set()
        for named in things:
            for label in named.labels:
                self._labels.setdefault(label, []).append(named)
            for other in {named.short, *named.modules} | named.names_of_one:
                self._others.setdefault(other, []).append(named)
            self._of_one |= named.names_of_one

    def _by_key(self, key: str) -> list[LookupEntry[Thing]]:
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
        key = valid_key(key)
        if isinstance(key, int):
            if not -len(self._saved) <= key < len(self._saved):
                raise IndexError(f"layer {key} is out of range: {len(self._saved)} layers are saved")
            return [self._saved[key]]
        found = self._by_key(key)
        if not found:
            raise unknown_key_error(key, self._keys)
        if several := self._several(key):
            raise LookupKeyError(f"{key!r} matches several layers; name one of {', '.join(several)}")
        return [named.thing for named in found]

    def __contains__(self, key: object) -> bool:
        """Return whether `key` names one thing or layer."""
        try:
            return is_key(key) and bool(self.find(valid_key(key)))
        except (LookupKeyError, IndexError):
            return False

    def matching(self, key: str | int) -> list[Thing]:
        """Return all that `key` stands for, several layers too; text that is no key: all with it in their labels."""
        if not isinstance(key, str):
            return self.find(key)
        everything = (named for layer in self._labels.values() for named in layer)
        found = self._by_key(key) or [named for named in everything if key in named.label]
        if not found:
            hint = close(key, ["all", "none", *self._keys]) or f"expected {_KEYS}"
            raise LookupKeyError(f"no layer has {key!r} in its label; {hint}")
        return [named.thing for named in found]

    def keys_of(self, named: LookupEntry[Thing], place: int | None) -> tuple[str | int, ...]:
        """Return the keys that find a thing: places first, then names in alphabetical order."""
        names = {key for key in (*named.own, *named.modules) if self._names_only(key, named.thing)}
        places = () if place is None else (place - len(self._saved), place)
        return (*places, *sorted({named.label, f"{named.layer}:{named.pass_num}"} | names))

    def _names_only(self, key: str, thing: Thing) -> bool:
        found = self._by_key(key)
        return len(found) == 1 and found[0].thing is thing


ByLabel = Mapping[str, LoggedOperation]


@dataclass(frozen=True)
class Query:
    """What layers have to be; all that is given must hold.  Text may have the wildcards ``*``, ``?`` and ``[...]``.

    Attributes
    ----------
    func
        Layer type (``"conv2d"``, ``"*pool*"``) or the function's name.
    module
        Address of a module around it (``"layer3.*"``), or one call of it (``"cell:2"``).
    label
        The layer's label: ``"conv2d_1*"``.
    followed_by, preceded_by
        What one of its children, or parents, is: a layer type, or another query.
    dtype
        The tensor's type: ``torch.float16``, or as text, ``"float*"``.
    shape
        The tensor's shape; None stands for any size: ``(None, 64, None, None)``.
    with_params
        Whether it computes with parameters.

    Raises
    ------
    TypeError
        If one of them is of another kind.

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
        """Check what is wanted."""
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None and not isinstance(value, _KINDS.get(name, str)):
                hint = "; for a condition, filter history.operations" if callable(value) else ""
                raise TypeError(f"{name} of a query: expected {_TAKES.get(name, 'text')}, got {value!r:.80}{hint}")
        sizes: Iterable[object] = self.shape or ()
        if odd := [size for size in sizes if not isinstance(size, int | None)]:
            raise TypeError(f"shape of a query: expected whole numbers, or None for any size, got {odd[0]!r:.80}")

    def select(self, operations: Iterable[LoggedOperation]) -> list[LoggedOperation]:
        """Return the operations, of all those of a history, for which everything holds."""
        by_label = {op.label: op for op in operations}
        return [op for op in by_label.values() if self.holds(op, by_label)]

    def holds(self, op: LoggedOperation, by_label: ByLabel) -> bool:
        """Return whether everything holds for an operation; `by_label` has all of its history."""
        return self._is(op) and self._stands_in(op, by_label)

    def _is(self, op: LoggedOperation) -> bool:
        return (
            _one_like([op.layer_type, op.func_applied_name], self.func)
            and _one_like([op.layer_label, op.layer_label_w_pass], self.label)
            and _one_like([op.tensor_dtype, op.tensor_dtype.removeprefix("torch.")], _name_of(self.dtype))
            and _fits(op.tensor_shape, self.shape)
            and self.with_params in (None, op.computed_with_params)
        )

    def _stands_in(self, op: LoggedOperation, by_label: ByLabel) -> bool:
        calls = op.containing_module_origin_nested
        addresses = [_NUMBER.sub("", call) for call in calls]
        return (
            _one_like([*calls, *addresses], self.module)
            and _next_to(self.followed_by, op.child_layers, by_label)
            and _next_to(self.preceded_by, op.parent_layers, by_label)
        )


_NUMBER = re.compile(r":\d+$")
"""Of a module's call; an address may have colons of its own."""

_KINDS: dict[str, Any] = {
    "followed_by": str | Query,
    "preceded_by": str | Query,
    "dtype": str | torch.dtype,
    "shape": tuple | list,
    "with_params": bool,
}
_TAKES = {
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
        If there is no such attribute; with the nearest one.
    """
    for name in wanted:
        if name not in Query.__dataclass_fields__:
            raise TypeError(
                f"expected an attribute of a query, got {name!r}; {nearest(name, Query.__dataclass_fields__)}"
            )
    return Query(func=func, **wanted)


def _name_of(dtype: str | torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype)


def _one_like(names: Iterable[str], pattern: str | None) -> bool:
    return pattern is None or any(fnmatchcase(name, pattern) for name in names)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...] | None) -> bool:
    if wanted is None:
        return True
    return len(shape) == len(wanted) and all(size in (None, own) for own, size in zip(shape, wanted, strict=True))


def _next_to(wanted: str | Query | None, labels: Iterable[str], by_label: ByLabel) -> bool:
    if wanted is None:
        return True
    query = wanted if isinstance(wanted, Query) else Query(func=wanted)
    return any(query.holds(by_label[label], by_label) for label in labels)
