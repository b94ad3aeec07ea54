"""Which layers are saved: by keys, by queries, by a function of the operation."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

import torch

from pytest_torchlens.capture import SavingError
from pytest_torchlens.history.lookup import LookupKeyError
from pytest_torchlens.history.lookup import checked
from pytest_torchlens.history.lookup import is_key
from pytest_torchlens.history.operation import LoggedOperation
from pytest_torchlens.history.query import Query

Test = Query | Callable[[LoggedOperation], bool]
LayersToSave = str | int | Test | Sequence[str | int | Test] | None


def keys_and_tests(wanted: LayersToSave) -> tuple[list[str | int], list[Test]]:
    """Return the keys in what was asked for, and the queries and functions."""
    items = wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str | bytes) else [wanted]
    if odd := [hint for item in items if (hint := _why_not(item))]:
        raise LookupKeyError(f"layers_to_save cannot have {odd[0]}")
    keys = [checked(item) for item in items if is_key(item)]
    return keys, [item for item in items if isinstance(item, Query) or callable(item)]


def _why_not(item: object) -> str:
    """Return what is wrong with a thing to save, nothing for a good one."""
    if isinstance(item, str) and item in ("", "all", "none"):
        return f"{item!r} among others; it stands alone" if item else "'', which is part of every label; say 'all'"
    if isinstance(item, torch.nn.Module):
        return f"the module {type(item).__name__} itself; name it by its address, as in 'features.6'"
    if isinstance(item, type) or not (is_key(item) or isinstance(item, Query) or callable(item)):
        return (
            f"{item!r:.80}: it takes labels, module addresses, places, parts of labels, queries and functions of an "
            "operation"
        )
    return ""


def places_that_pass(operations: list[LoggedOperation], tests: list[Test]) -> set[int]:
    """Return the places of the operations that one of the tests selects.

    Raises
    ------
    LookupKeyError
        If a test selects none.
    SavingError
        If a function raises; with the operation.
    """
    by_label = {op.label: op for op in operations}
    chosen: set[int] = set()
    for test in tests:
        found = {place for place, op in enumerate(operations) if _passes(op, test, by_label)}
        if not found:
            raise LookupKeyError(f"layers_to_save: no layer passes {test!r}")
        chosen |= found
    return chosen


def _passes(op: LoggedOperation, test: Test, by_label: dict[str, LoggedOperation]) -> bool:
    if isinstance(test, Query):
        return test.holds(op, by_label)
    try:
        return bool(test(op))
    except Exception as error:
        name = getattr(test, "__name__", repr(test))
        raise SavingError(
            f"layers_to_save: the function {name} raised {type(error).__name__}: {error} (on {op.label})"
        ) from error
