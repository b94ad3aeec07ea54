"""Layers by what they do, where they are and what is next to them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_torchlens.history.operation import LoggedOperation

ByLabel = Mapping[str, LoggedOperation]


@dataclass(frozen=True)
class Query:
    """What layers have to be; all that is given must hold.  Text may have the wildcards ``*``, ``?`` and ``[...]``.

    Attributes
    ----------
    func
        Layer type (``"conv2d"``, ``"*pool*"``) or the function's name.
    module
        Address of a module around it: ``"layer3.*"``.
    label
        The layer's label: ``"conv2d_1*"``.
    followed_by, preceded_by
        What one of its children, or parents, is: a layer type, or another query.
    dtype
        The tensor's type: ``"torch.float16"``.
    shape
        The tensor's shape; None stands for any size: ``(None, 64, None, None)``.
    with_params
        Whether it computes with parameters.

    Examples
    --------
    >>> pools_after_relu = Query(func="*pool*", preceded_by="relu")
    """

    func: str | None = None
    module: str | None = None
    label: str | None = None
    followed_by: str | Query | None = None
    preceded_by: str | Query | None = None
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    with_params: bool | None = None

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
            and _one_like([op.tensor_dtype, op.tensor_dtype.removeprefix("torch.")], self.dtype)
            and _fits(op.tensor_shape, self.shape)
            and self.with_params in (None, op.computed_with_params)
        )

    def _stands_in(self, op: LoggedOperation, by_label: ByLabel) -> bool:
        calls = [call.partition(":")[0] for call in op.containing_module_origin_nested]
        return (
            _one_like(calls, self.module)
            and _next_to(self.followed_by, op.child_layers, by_label)
            and _next_to(self.preceded_by, op.parent_layers, by_label)
        )


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
