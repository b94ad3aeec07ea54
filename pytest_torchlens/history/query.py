"""Layers by what they do, where they are and what is next to them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.records import nearest

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
                raise TypeError(f"{name} of a query is {value!r:.80}; it takes {_TAKES.get(name, 'text')}{hint}")
        sizes: Iterable[object] = self.shape or ()
        if odd := [size for size in sizes if not isinstance(size, int | None)]:
            raise TypeError(f"shape of a query has {odd[0]!r:.80}; sizes are whole numbers, None stands for any")

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
            raise TypeError(f"a query has no {name!r}; {nearest(name, Query.__dataclass_fields__)}")
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
