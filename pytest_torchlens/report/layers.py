"""Rows of the table of layers, and the tree of modules with their totals."""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchlens.records import address_of
from pytest_torchlens.report.inline import row_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchlens.records import HistoryRecord
    from pytest_torchlens.records import ModuleRecord
    from pytest_torchlens.records import Operation
    from pytest_torchlens.report.costs import Costs


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
    share: float
    """Of the time of all operations."""
    flops: int
    fsize: int
    """Bytes of the tensors made in it."""
    opens: bool
    """Whether the next one is below it."""
    num_closing: int
    """How many lists end after it."""


@dataclass
class _Work:
    operations: int = 0
    seconds: float = 0.0
    flops: int = 0
    fsize: int = 0

    def add(self, operations: int, seconds: float, flops: int, fsize: int) -> None:
        self.operations += operations
        self.seconds += seconds
        self.flops += flops
        self.fsize += fsize


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


def module_tree(costs: Costs) -> list[Branch]:
    """Return the modules in the order of the tree, each before those below it."""
    modules = {module.address: module for module in costs.history.modules}
    if "" not in modules:
        return []
    order = list(_walk(modules))
    work = _work(costs, modules)
    params = _params(order)
    following = [level for _, level in order[1:]] + [0]
    return [
        Branch(
            module=module,
            level=level,
            num_params=params[module.address],
            num_operations=work[module.address].operations,
            seconds=work[module.address].seconds,
            share=work[module.address].seconds / (costs.total or 1.0),
            flops=work[module.address].flops,
            fsize=work[module.address].fsize,
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


def _work(costs: Costs, modules: dict[str, ModuleRecord]) -> dict[str, _Work]:
    """Add up each module's calls, and the tensors they made."""
    work: dict[str, _Work] = defaultdict(_Work)
    for call in costs.calls:
        for address in _around(call, modules):
            work[address].add(1, costs.seconds(call), costs.flops(call) or 0, 0)
    for operation in costs.history.operations:
        for address in _around(operation, modules) if operation.call_id >= 0 else ():
            work[address].add(0, 0.0, 0, operation.tensor_fsize)
    return work


def _around(operation: Operation, modules: dict[str, ModuleRecord]) -> set[str]:
    return {address_of(call, modules) for call in operation.containing_module_origin_nested} | {""}


def _params(order: list[tuple[ModuleRecord, int]]) -> Counter[str]:
    """Add each module's own parameters to all that contain it."""
    totals: Counter[str] = Counter()
    path: list[str] = []
    for module, level in order:
        path[level:] = [module.address]
        totals.update(dict.fromkeys(path, module.num_params))
    return totals
