"""Computes data for a model's page: costs of operations and modules, rows of the layer table, the module tree, details.

Costs come from measurements where available, and otherwise from the times recorded with the forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from pytest_torchlens.baseline.snapshot import stable_ids
from pytest_torchlens.baseline.snapshot_file import readable
from pytest_torchlens.draw import module_id
from pytest_torchlens.draw import node_id
from pytest_torchlens.draw.text import duration
from pytest_torchlens.draw.text import layer_id
from pytest_torchlens.draw.text import magnitude
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import shorten
from pytest_torchlens.records import EditsByOperation
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import ModuleMeasurements
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of
from pytest_torchlens.records import byte_size
from pytest_torchlens.records import count_text
from pytest_torchlens.records import pass_of
from pytest_torchlens.report.drawings import row_id

if TYPE_CHECKING:
    from pytest_torchlens.records import HistoryRecord
    from pytest_torchlens.records import Measurements


_MOST_BARS: Final = 12

_FEW: Final = 3


@dataclass(frozen=True)
class Bar:
    """One bar of a chart."""

    name: str
    seconds: float
    share: float
    """Share of the time of all operations."""
    count: int
    """Number of calls."""


@dataclass(frozen=True)
class Costs:
    """Seconds and floating-point operations of one forward pass."""

    history: HistoryRecord
    measurements: Measurements | None = None

    @classmethod
    def of(cls, report: ModelReport) -> Costs | None:
        """Return the costs of a model; None without a history."""
        return cls(report.history, report.measurements) if report.history else None

    def seconds(self, operation: Operation) -> float:
        """Return the time of the call that produced a tensor."""
        times = self.measurements.operation_seconds if self.measurements else ()
        return times[operation.call_id] if 0 <= operation.call_id < len(times) else operation.func_time_elapsed

    def flops(self, operation: Operation) -> int | None:
        """Return the floating-point operations of the call that produced a tensor; None if unknown."""
        counts = self.measurements.operation_flops if self.measurements else ()
        return counts[operation.call_id] if 0 <= operation.call_id < len(counts) else None

    @cached_property
    def calls(self) -> tuple[Operation, ...]:
        """The first operation of each call."""
        return tuple({op.call_id: op for op in reversed(self.history.operations) if op.call_id >= 0}.values())[::-1]

    @cached_property
    def first_labels(self) -> frozenset[str]:
        """Labels of the first operation of each call."""
        return frozenset(op.label for op in self.calls)

    @cached_property
    def total(self) -> float:
        """Total seconds of all calls."""
        return sum(map(self.seconds, self.calls))

    def by_type(self) -> list[Bar]:
        """Return a bar for each kind of operation, the most costly first."""
        return self._bars((op.layer_type, op) for op in self.calls)

    def by_module(self) -> list[Bar]:
        """Return the modules of the outermost level with at least three, the most costly first."""
        addresses = {module.address for module in self.history.modules}
        paths = {
            op.call_id: tuple(address_of(call, addresses) for call in op.containing_module_origin_nested)
            for op in self.calls
        }
        deepest = max(map(len, paths.values()), default=0)
        levels = ({path[:level][-1:] for path in paths.values()} for level in range(1, deepest + 1))
        level = next((level for level, names in enumerate(levels, 1) if len(names - {()}) >= _FEW), deepest)
        named = ((paths[op.call_id][:level][-1:] or ("outside of modules",), op) for op in self.calls)
        return self._bars((name, op) for (name,), op in named) if deepest else []

    def _bars(self, named: Iterable[tuple[str, Operation]]) -> list[Bar]:
        times: dict[str, list[float]] = defaultdict(list)
        for name, op in named:
            times[name].append(self.seconds(op))
        ranked = sorted(times.items(), key=lambda item: -sum(item[1]))
        shown, others = ranked[:_MOST_BARS], ranked[_MOST_BARS:]
        if others:
            shown.append((count_text(len(others), "other"), [time for _, list_ in others for time in list_]))
        return [Bar(name, sum(list_), sum(list_) / (self.total or 1.0), len(list_)) for name, list_ in shown]


_LONGEST = 300

_MOST_LINKS = 50

_STEPS: Final = "steps inside"


def layers(history: HistoryRecord) -> Iterator[LayerRow]:
    """Yield a row for each operation and source."""
    labels = {key: op for op in history.operations for key in (op.layer_label_w_pass, op.label)}
    edits = EditsByOperation(history)
    for operation in history.operations:
        parents = (labels[label] for label in operation.parent_layers if label in labels)
        yield LayerRow(
            id=row_id(operation),
            label=operation.label,
            operation=operation,
            parents=tuple((parent.label, row_id(parent)) for parent in parents),
            edits=printable(edits.words(operation)),
        )


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One row of the layer table."""

    id: str
    label: str
    operation: Operation
    parents: tuple[tuple[str, str], ...]
    """Label and row id of each parent tensor."""
    edits: str
    """What edits did to it; ``""`` for nothing."""


def module_tree(costs: Costs) -> list[Branch]:
    """Return the module tree, each module before its children."""
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


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One module in the tree."""

    module: ModuleRecord
    level: int
    num_params: int
    """Parameters of the module and of all modules below it."""
    num_operations: int
    seconds: float
    """Sum over the module's operations."""
    share: float
    """Share of the time of all operations."""
    flops: int
    fsize: int
    """Bytes of the tensors that the module produced."""
    opens: bool
    """Whether the next branch is below this one."""
    num_closing: int
    """Number of nested lists that end after this branch."""


@dataclass(frozen=True)
class Flame:
    """One bar of the flame chart: a module, as wide as its share of the time, below the module around it."""

    branch: Branch
    id: str
    """Id of the module's node; ``""`` for the model."""
    x: float
    """Place of its left edge, from 0 to 1."""


_THINNEST: Final = 0.002
"""Least share of the time that a bar of the flame chart shows."""


def flames(costs: Costs, tree: list[Branch]) -> list[Flame]:
    """Return the bars of the flame chart; bars side by side are in the order of the module tree."""
    modules = {branch.module.address for branch in tree}
    calls = (call for op in costs.history.operations for call in op.containing_module_origin_nested)
    firsts = {address_of(call, modules): module_id(call) for call in reversed(list(calls))}
    ends: list[float] = []
    found = []
    for branch in tree:
        ends = ends[: branch.level + 1] or [0.0]
        start = ends[branch.level]
        ends[branch.level :] = [start + branch.share, start]
        if branch.share >= _THINNEST:
            found.append(Flame(branch, firsts.get(branch.module.address, ""), start))
    return found if len(found) > 1 else []


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


def _walk(modules: dict[str, ModuleRecord]) -> Iterator[tuple[ModuleRecord, int]]:
    """Yield each module once, even if several modules share it."""
    waiting, seen = [("", 0)], set()
    while waiting:
        address, level = waiting.pop()
        if address in seen or address not in modules:
            continue
        seen.add(address)
        yield modules[address], level
        waiting += [(child, level + 1) for child in reversed(modules[address].children)]


def _work(costs: Costs, modules: dict[str, ModuleRecord]) -> dict[str, _Work]:
    """Sum each module's calls, and the sizes of the tensors that they produced."""
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
    """Count each module's parameters, including those of the modules below it."""
    totals: Counter[str] = Counter()
    path: list[str] = []
    for module, level in order:
        path[level:] = [module.address]
        totals.update(dict.fromkeys(path, module.num_params))
    return totals


def details(report: ModelReport, costs: Costs) -> dict[str, Any]:
    """Return the details that the page shows for a selected layer (by row id) or module (by node id)."""
    history, edits = costs.history, EditsByOperation(costs.history)
    operations = {key: op for op in history.operations for key in (op.layer_label_w_pass, op.label)}
    differences, histograms, pictures = _differences(report), _histograms(report), _pictures(report)
    modules = {module.address: module for module in history.modules}
    layers = {
        row_id(op): {
            "label": op.label,
            "nodes": list(dict.fromkeys((node_id(op), layer_id(op)))),
            "numbers": _numbers(op, costs) | ({"difference": 1} if op.label in differences else {}),
            "facts": [
                (name, _shown(name, text))
                for name, text in (
                    ("edits", edits.words(op)),
                    ("baseline", differences.get(op.label, "")),
                    *_facts(op, costs),
                )
                if text
            ],
            "code": report.code.get(op.source_line, ""),
            "histogram": histograms.get(op.label),
            "picture": pictures.get(op.label),
            "from": _links(op.parent_layers, operations),
            "to": _links(op.child_layers, operations),
        }
        for op in history.operations
    }
    costs_of = {module.address: module for module in report.measurements.modules} if report.measurements else {}
    first: dict[str, Operation] = {}
    for op in history.operations:
        for call in op.containing_module_origin_nested:
            first.setdefault(call, op)
    module_details = {module_id(call): _module(call, first[call], modules, costs_of) for call in first}
    return {"layers": layers, "modules": module_details}


def _shown(name: str, text: str) -> str:
    """Return a fact's text without the middle of a long one, but all steps: nothing else on the page lists them."""
    return printable(text) if name == _STEPS else shorten(printable(text), _LONGEST)


def _histograms(report: ModelReport) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """Return least and greatest value, and the histogram between them, of each activation by label."""
    if report.statistics is None:
        return {}
    found = report.statistics
    rows = zip(found.operations, found.minimum, found.maximum, found.histograms, strict=False)
    return {label: (f"{low:.4g}", f"{high:.4g}", counts) for label, low, high, counts in rows if any(counts)}


def _pictures(report: ModelReport) -> dict[str, str]:
    """Return the picture of each activation by label."""
    found = report.statistics
    return (
        {} if found is None else {name: one for name, one in zip(found.operations, found.pictures, strict=False) if one}
    )


def _differences(report: ModelReport) -> dict[str, str]:
    """Return what the comparison with the baseline says of each operation that differs, by label."""
    if report.comparison is None or report.history is None:
        return {}
    labels = dict(zip(_baseline_names(report.history), (op.label for op in report.history.operations), strict=True))
    findings = (finding for finding in report.comparison.findings if finding.operation in labels)
    return {labels[finding.operation]: f"{finding.change.value}: {finding.message}" for finding in findings}


def _baseline_names(history: HistoryRecord) -> Iterator[str]:
    """Return the names by which a baseline knows each operation, such as ``"layer1.0.conv1/conv2d"``."""
    addresses = {module.address for module in history.modules}
    calls = ((op.containing_module_origin_nested or ("",))[-1] for op in history.operations)
    names = [readable(address_of(call, addresses) if pass_of(call, addresses) == 1 else call) for call in calls]
    return stable_ids(zip(names, (op.layer_type for op in history.operations), strict=True))


def _numbers(op: Operation, costs: Costs) -> dict[str, float]:
    """Return the numbers that colours of the graph can show; those of a call count for its first tensor alone."""
    numbers: dict[str, float] = {"memory": op.tensor_fsize}
    if op.label in costs.first_labels:
        numbers |= {"time": round(costs.seconds(op), 9), "flops": costs.flops(op) or 0}
    return numbers


def _links(labels: tuple[str, ...], operations: Mapping[str, Operation]) -> list[tuple[str, str]]:
    known = (operations[label] for label in labels[:_MOST_LINKS] if label in operations)
    return [(op.label, row_id(op)) for op in known]


def _facts(op: Operation, costs: Costs) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for each fact; the page omits facts without text."""
    params = zip(op.parent_param_addresses, op.parent_param_shapes, strict=False)
    frozen = op.num_params_total - op.num_params_trainable
    yield "shape", f"{shape_text(op.tensor_shape)}, {op.tensor_dtype.removeprefix('torch.')} on {op.tensor_device}"
    yield "size", byte_size(op.tensor_fsize)
    yield "function", op.func_applied_name + (" (in place)" if op.function_is_inplace else "")
    yield "inside", op.composite
    yield _STEPS, ", ".join(op.steps)
    yield "arguments", ", ".join(op.func_position_args_non_tensor + op.func_keyword_args_non_tensor)
    yield "parameters", ", ".join(f"{name} {shape_text(shape)}" for name, shape in params)
    yield "of them frozen", f"{frozen:,}" if frozen else ""
    yield "buffer", op.buffer_address or ""
    yield "constant", op.constant_origin
    yield "module", " › ".join(op.containing_module_origin_nested)
    yield "pass", f"{op.pass_num} of {op.layer_passes_total}" if op.layer_passes_total > 1 else ""
    yield "time", duration(costs.seconds(op)) if costs.seconds(op) else ""
    yield "FLOPs", magnitude(costs.flops(op) or 0) if costs.flops(op) else ""
    yield "random", "draws random numbers" if op.function_is_random else ""
    yield "backward", op.gradfunc_name
    yield "fingerprint", op.fingerprint
    yield "source", op.source_line


def _module(
    call: str, first: Operation, modules: Mapping[str, ModuleRecord], costs: Mapping[str, ModuleMeasurements]
) -> dict[str, Any]:
    """Return what the page shows of a module call; the node of one operation is that of its `first`."""
    address = address_of(call, modules)
    module = modules.get(address) or ModuleRecord(address=call, module_type="")
    facts = [("class", module.module_type), ("calls", f"{module.num_passes:,}")]
    if module.num_params:
        facts.append(("own parameters", count_text(module.num_params, "element")))
    if cost := costs.get(address):
        facts += [("time", duration(cost.seconds)), ("self", duration(cost.self_seconds))]
        facts += [("FLOPs", magnitude(cost.flops)), ("bytes moved", byte_size(cost.bytes_moved))]
    return {
        "label": call,
        "nodes": [module_id(call), module_id(address), node_id(first), layer_id(first)],
        "facts": [(name, shorten(printable(text), _LONGEST)) for name, text in facts],
    }
