"""Which layers are saved: by keys, by queries, by a function of the operation."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

from pytest_torchlens.history.lookup import LookupKeyError
from pytest_torchlens.history.operation import LoggedOperation
from pytest_torchlens.history.query import Query

Test = Query | Callable[[LoggedOperation], bool]
LayersToSave = str | int | Test | Sequence[str | int | Test] | None


def keys_and_tests(wanted: LayersToSave) -> tuple[list[str | int], list[Test]]:
    """Return the keys in what was asked for, and the queries and functions."""
    items = wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]
    keys = [item for item in items if isinstance(item, str | int)]
    tests = [item for item in items if isinstance(item, Query) or callable(item)]
    if odd := [item for item in items if not (isinstance(item, str | int | Query) or callable(item))]:
        raise LookupKeyError(
            f"layers_to_save cannot have {odd[0]!r}: it takes labels, module addresses, places, parts of labels, "
            "queries and functions of an operation"
        )
    return keys, tests


def places_that_pass(operations: list[LoggedOperation], tests: list[Test]) -> set[int]:
    """Return the places of the operations that one of the tests selects.

    Raises
    ------
    LookupKeyError
        If a test selects none.
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
    return test.holds(op, by_label) if isinstance(test, Query) else bool(test(op))
