"""What does not fit together in a history read from disk; asked before anything else is made of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from itertools import zip_longest

import torch

from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation


def problems_of(history: HistoryRecord, stacks: dict[str, tuple[int, ...]], frames: int) -> Iterator[str]:
    """Yield what does not fit together in a saved history, its call stacks and the number of their frames."""
    labels = {op.label for op in history.operations}
    if len(labels) != len(history.operations):
        yield "two operations have the same label"
    yield from _pass_problems(history.operations)
    yield from _graph_problems(history.operations, labels)
    yield from _edge_problems(history.operations)
    for op in history.operations:
        yield from _label_problems(op)
        yield from _tensor_problems(op)
    yield from _key_problems(history.operations)
    yield from _module_problems(history)
    yield from _call_problems(history)
    yield from _branch_problems(history)
    yield from _name_problems(history, labels)
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
            pieces = list(zip_longest(lines[::2], lines[1::2], fillvalue=0))
            if not all(1 <= first <= last <= _MOST_LINES for first, last in pieces):
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


def _edge_problems(operations: tuple[Operation, ...]) -> Iterator[str]:
    children: dict[str, set[str]] = {op.label: set() for op in operations}
    for op in operations:
        if (read := tuple(dict.fromkeys(edge.parent for edge in op.edges))) != op.parent_layers:
            yield f"{op.label} has edges from {_some(read)}, and {_some(op.parent_layers)} as parents"
        for parent in op.parent_layers:
            children.get(parent, set()).add(op.label)
    for op in operations:
        if children[op.label] != {*op.child_layers} or len(children[op.label]) != len(op.child_layers):
            yield f"{op.label} is read by {_some(children[op.label])}, and has {_some(op.child_layers)} as children"


def _some(labels: Iterable[str]) -> str:
    few = [*sorted(labels)[:_FEW], "…"] if len(sorted(labels)) > _FEW else sorted(labels)
    return ", ".join(few) or "none"


_FEW = 3


def _label_problems(op: Operation) -> Iterator[str]:
    short = f"{op.layer_type}_{op.layer_type_num}"
    layer = short if op.layer_total_num < 0 else f"{short}_{op.layer_total_num}"
    expected = layer, f"{layer}:{op.pass_num}", short
    given = op.layer_label, op.layer_label_w_pass, op.layer_label_short
    for wanted, label in zip(expected, given, strict=True):
        if label != wanted:
            yield f"the label {label!r} should be {wanted!r}, by its type and numbers"


def _tensor_problems(op: Operation) -> Iterator[str]:
    sizes = op.tensor_shape
    is_dense = op.tensor_stride is not None
    if min(sizes, default=0) < (0 if is_dense else -1) or (is_dense and len(sizes) != len(op.tensor_stride or ())):
        yield f"{op.label} has the shape {sizes} with strides {op.tensor_stride}"
    dtype = getattr(torch, op.tensor_dtype.removeprefix("torch."), None)
    expected = math.prod(sizes) * dtype.itemsize if is_dense and isinstance(dtype, torch.dtype) else op.tensor_fsize
    if op.tensor_fsize != expected or expected < 0:
        yield f"{op.label} has {op.tensor_fsize} bytes, and {expected} by its shape and dtype"
    if len(op.parent_param_addresses) != len(op.parent_param_shapes):
        yield f"{op.label} has {len(op.parent_param_shapes)} shapes for its parameters {op.parent_param_addresses}"


def _key_problems(operations: tuple[Operation, ...]) -> Iterator[str]:
    keys = Counter(key for op in operations for key in op.lookup_keys)
    if several := [key for key, times in keys.items() if times > 1]:
        yield f"two operations have the lookup key {several[0]!r}"


def _call_problems(history: HistoryRecord) -> Iterator[str]:
    passes = {module.address: module.num_passes for module in history.modules}
    calls = {
        f"{module.address}:{place}" for module in history.modules for place, _ in enumerate(module.pass_children, 1)
    }
    for module in history.modules:
        if module.num_passes != len(module.pass_children):
            there = len(module.pass_children)
            yield f"module {module.address!r} was called {module.num_passes} times, and {there} calls are there"
        made = [call for children in module.pass_children for call in children]
        if strange := [call for call in (*made, *history.top_level_module_passes) if call not in calls]:
            yield f"{strange[0]!r} is no call of a module"
    for op in history.operations:
        around = (*op.containing_module_origin_nested, *op.modules_entered, *op.modules_exited)
        if strange := [call for call in around if call not in calls and passes.get(call) != 1]:
            yield f"{op.label} is in or beside {strange[0]!r}, which is no call of a module"


def _name_problems(history: HistoryRecord, labels: set[str]) -> Iterator[str]:
    layers = {op.layer_label for op in history.operations}
    for loop in history.loops:
        if strange := [layer for layer in loop.layers if layer not in layers]:
            yield f"a loop has {strange[0]!r}, which is no layer"
    for escape in history.escapes:
        if escape.operation and escape.operation not in labels:
            yield f"a value was asked of {escape.operation!r}, which is no operation"
