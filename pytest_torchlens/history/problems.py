"""What does not fit together in a history read from disk; asked before anything else is made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation


def problems_of(history: HistoryRecord, stacks: dict[str, tuple[int, ...]], frames: int) -> Iterator[str]:
    """Yield what does not fit together in a saved history, its call stacks and the number of their frames."""
    labels = {op.label for op in history.operations}
    if len(labels) != len(history.operations):
        yield "two operations have the same label"
    yield from _pass_problems(history.operations)
    yield from _graph_problems(history.operations, labels)
    yield from _module_problems(history)
    yield from _branch_problems(history)
    for label, stack in stacks.items():
        if label not in labels or any(not 0 <= place < frames for place in stack):
            yield f"the call stack of {label!r} points nowhere"
    if unknown := [label for label in history.layer_list if label not in labels]:
        yield f"layer_list has {unknown[0]!r}, which is no operation"


def _pass_problems(operations: tuple[Operation, ...]) -> Iterator[str]:
    passes = Counter(op.layer_label for op in operations)
    for op in operations:
        if not 1 <= op.pass_num <= op.layer_passes_total == passes[op.layer_label]:
            there = passes[op.layer_label]
            yield f"{op.label!r} is pass {op.pass_num} of {op.layer_passes_total}, and there are {there}"


def _branch_problems(history: HistoryRecord) -> Iterator[str]:
    for escape in history.escapes:
        for lines in (escape.lines_taken, escape.lines_not_taken):
            if lines and not (len(lines) == 2 and 1 <= lines[0] <= lines[1] <= _MOST_LINES):  # noqa: PLR2004 - first, last
                yield f"a condition has lines {lines[:3]}, which are no first and last line"


_MOST_LINES = 1_000_000


def _graph_problems(operations: tuple[Operation, ...], labels: set[str]) -> Iterator[str]:
    seen: set[str] = set()
    for op in operations:
        for label in (*op.parent_layers, *(edge.parent for edge in op.edges)):
            if label not in seen:
                yield f"{op.label} reads {label!r}, which does not come before it"
        for label in op.child_layers:
            if label not in labels or label in seen or label == op.label:
                yield f"{op.label} is read by {label!r}, which is not there or comes before it"
        seen.add(op.label)


def _module_problems(history: HistoryRecord) -> Iterator[str]:
    addresses = {module.address for module in history.modules}
    if "" not in addresses or len(addresses) != len(history.modules):
        yield "the model is not among its modules, or two have the same address"
    if deep := [module for module in history.modules if module.address.count(".") > _DEEPEST]:
        yield f"module {deep[0].address[:80]!r}… lies in more than {_DEEPEST} others"
    for module in history.modules:
        for child in module.children:
            if child not in addresses or not child or child.rpartition(".")[0] != module.address:
                yield f"module {module.address!r} cannot contain {child!r}"


_DEEPEST = 200
