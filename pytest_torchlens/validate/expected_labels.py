"""Counts afresh the numbers and labels that the operations of a history must have, and the keys that find them.

Which operations are passes of one layer is taken from the labels that users read: each operation says it in three ways,
of which two must agree.  All numbers follow from that by counting.
"""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from pytest_torchlens.records import Operation
from pytest_torchlens.validate.expected_graph import ExpectedOperation


def number_operations(operations: list[ExpectedOperation], records: Sequence[Operation]) -> None:
    """Give each expected operation its layer, pass, numbers and labels."""
    layers: dict[str, list[ExpectedOperation]] = defaultdict(list)
    of_type: Counter[str] = Counter()
    total = operation_num = 0
    for operation, record in zip(operations, records, strict=True):
        passes = operation.passes = layers[_layer_of(record)]
        passes.append(operation)
        operation.pass_num = len(passes)
        first = passes[0]
        if first is operation:
            of_type[operation.layer_type] += 1
            operation.type_num = of_type[operation.layer_type]
            operation.total_num = total if operation.is_numbered else -1
            total += operation.is_numbered
        else:
            operation.type_num, operation.total_num = first.type_num, first.total_num
        if operation.is_numbered:
            operation.operation_num = operation_num
            operation_num += 1
    for operation in operations:
        _name(operation)


def _layer_of(record: Operation) -> str:
    """Return the layer that at least two of three fields of a record name."""
    number = f"_{record.layer_total_num}" if record.layer_total_num >= 0 else ""
    names = (
        record.layer_label,
        record.layer_label_w_pass.rpartition(":")[0],
        f"{record.layer_type}_{record.layer_type_num}{number}",
    )
    return names[1] if names[1] == names[2] else names[0]


def _name(operation: ExpectedOperation) -> None:
    number = f"_{operation.total_num}" if operation.is_numbered else ""
    operation.layer_label = f"{operation.layer_type}_{operation.type_num}{number}"
    operation.label_w_pass = f"{operation.layer_label}:{operation.pass_num}"
    operation.label = operation.label_w_pass if len(operation.passes) > 1 else operation.layer_label


def misjoined(operations: list[ExpectedOperation]) -> Iterator[tuple[ExpectedOperation, str]]:
    """Yield the operations whose layer cannot be theirs.

    All passes of a layer run one function.  One function on the same parameters is one layer, if its other arguments
    descend from inputs: this is the paper's first rule.
    """
    on_parameters: dict[object, ExpectedOperation] = {}
    for one in operations:
        first = one.passes[0]
        if (one.layer_type, one.value.position if one.call else 0) != (
            first.layer_type,
            first.value.position if first.call else 0,
        ):
            yield one, f"it is a pass of {first.layer_label}, which runs another function"
        if one.call is None or not one.parameters or not one.from_input:
            continue
        if not all(parent.from_input or parent.source is not None for parent, _, _ in one.parents):
            continue
        read = frozenset(path for _, path, _ in one.parents)
        names = tuple(source.name for source in one.parameters)
        key = (one.layer_type, one.call.info.steps, one.value.position, names, read)
        other = on_parameters.setdefault(key, one)
        if other.passes is not one.passes:
            yield one, f"it works on the same parameters as {other.label}, and is not a pass of its layer"


def lookup_keys(
    operations: list[ExpectedOperation], listed: list[ExpectedOperation]
) -> dict[int, tuple[str | int, ...]]:
    """Return by the id of each operation the keys that must find it; places count over `listed`."""
    places = {id(one): place for place, one in enumerate(listed)}
    by_label, by_name = _bearers(operations)
    found: dict[int, tuple[str | int, ...]] = {}
    for one in operations:
        own = (
            name for name in _names(one) if len(alike := by_label.get(name) or by_name[name]) == 1 and alike[0] is one
        )
        place = places.get(id(one))
        numbers = () if place is None else (place - len(listed), place)
        found[id(one)] = (*numbers, *sorted({one.label, one.label_w_pass, *own}))
    return found


Bearers = dict[str, list[ExpectedOperation]]


def _bearers(operations: Iterable[ExpectedOperation]) -> tuple[Bearers, Bearers]:
    """Return the operations by each label, and by each other name that they go by."""
    by_label: Bearers = defaultdict(list)
    by_name: Bearers = defaultdict(list)
    for one in operations:
        for label in (one.layer_label, one.label_w_pass):
            by_label[label].append(one)
        short = f"{one.layer_type}_{one.type_num}"
        for name in {short, f"{short}:{one.pass_num}", *_names(one)}:
            by_name[name].append(one)
    return dict(by_label), by_name


def _names(one: ExpectedOperation) -> Iterator[str]:
    """Yield a buffer's address, and each module call that the tensor came out of, with and without its number."""
    if one.kind == "buffer" and one.source is not None:
        yield one.source.name
    for call in one.exited:
        yield call.label
        yield call.address
