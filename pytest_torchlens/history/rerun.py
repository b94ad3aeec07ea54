"""Where the graph of another forward pass of the same model differs."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

from pytest_torchlens.records import Operation


def graph_differences(before: Iterable[Operation], after: Iterable[Operation]) -> tuple[str, ...]:
    """Return a sentence for each stretch of operations that is in one graph alone; shapes and values do not count."""
    before, after = list(before), list(after)
    matcher = SequenceMatcher(None, _signatures(before), _signatures(after), autojunk=False)
    return tuple(
        _sentence(before[start:stop], after[begin:end])
        for tag, start, stop, begin, end in matcher.get_opcodes()
        if tag != "equal"
    )


def _signatures(operations: list[Operation]) -> list[tuple[Any, ...]]:
    """Return what makes an operation the same: function, module, and which operations before it go in where."""
    place = {op.label: number for number, op in enumerate(operations)}
    return [
        (
            op.layer_type,
            op.func_applied_name,
            op.containing_module_origin_nested,
            op.parent_param_addresses,
            tuple((number - place[edge.parent], edge.argument, edge.through_write) for edge in op.edges),
        )
        for number, op in enumerate(operations)
    ]


def _sentence(gone: list[Operation], new: list[Operation]) -> str:
    if not gone:
        return f"{_labels(new)} came in"
    if not new:
        return f"{_labels(gone)} did not run"
    return f"{_labels(new)} ran in place of {_labels(gone)}"


_MANY = 3


def _labels(operations: list[Operation]) -> str:
    if len(operations) > _MANY:
        return f"{operations[0].label} to {operations[-1].label} ({len(operations)} operations)"
    return ", ".join(op.label for op in operations)
