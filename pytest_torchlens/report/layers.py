"""Rows of the table of layers, and the tree of modules with their totals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchlens.records import address_of
from pytest_torchlens.report.inline import row_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchlens.records import HistoryRecord
    from pytest_torchlens.records import ModuleRecord
    from pytest_torchlens.records import Operation


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One row."""

    id: str
    label: str
    operation: Operation
    parents: tuple[tuple[str, str], ...]
    """Label and row id of each tensor it was made from."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One module in the tree."""

    module: ModuleRecord
    level: int
    num_params: int
    """Of the module and all below it."""
    num_operations: int
    seconds: float
    """Sum over its operations."""
    opens: bool
    """Whether the next one is below it."""
    num_closing: int
    """How many lists end after it."""


def layers(history: HistoryRecord) -> Iterator[Layer]:
    """Yield a row for each operation and source."""
    labels = {key: op for op in history.operations for key in (op.layer_label_w_pass, op.label)}
    for operation in history.operations:
        parents = (labels[label] for label in operation.parent_layers if label in labels)
        yield Layer(
            id=row_id(operation),
            label=operation.label,
            operation=operation,
            parents=tuple((parent.label, row_id(parent)) for parent in parents),
        )


def module_tree(history: HistoryRecord) -> list[Branch]:
    """Return the modules in the order of the tree, each before those below it."""
    modules = {module.address: module for module in history.modules}
    if "" not in modules:
        return []
    order = list(_walk(modules))
    operations, seconds = _work(history, modules)
    params = _params(order)
    following = [level for _, level in order[1:]] + [0]
    return [
        Branch(
            module=module,
            level=level,
            num_params=params[module.address],
            num_operations=operations[module.address],
            seconds=seconds[module.address],
            opens=next_level > level,
            num_closing=max(level - next_level, 0),
        )
        for (module, level), next_level in zip(order, following, strict=True)
    ]


def _walk(modules: dict[str, ModuleRecord]) -> Iterator[tuple[ModuleRecord, int]]:
    """Yield each module once, also where several modules share it."""
    waiting, seen = [("", 0)], set()
    while waiting:
        address, level = waiting.pop()
        if address in seen or address not in modules:
            continue
        seen.add(address)
        yield modules[address], level
        waiting += [(child, level + 1) for child in reversed(modules[address].children)]


def _work(history: HistoryRecord, modules: dict[str, ModuleRecord]) -> tuple[Counter[str], Counter[str]]:
    """Count operations and seconds of each module; an operation's time is that of its call, counted once."""
    operations: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    seen: set[int] = set()
    for operation in history.operations:
        if operation.call_id < 0 or operation.call_id in seen:
            continue
        seen.add(operation.call_id)
        around = {address_of(call, modules) for call in operation.containing_module_origin_nested} | {""}
        operations.update(around)
        seconds.update(dict.fromkeys(around, operation.func_time_elapsed))
    return operations, seconds


def _params(order: list[tuple[ModuleRecord, int]]) -> Counter[str]:
    """Add each module's own parameters to all that contain it."""
    totals: Counter[str] = Counter()
    path: list[str] = []
    for module, level in order:
        path[level:] = [module.address]
        totals.update(dict.fromkeys(path, module.num_params))
    return totals
