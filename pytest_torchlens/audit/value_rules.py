"""Audit rules about the dtypes and the values of activations."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from pytest_torchlens.audit.subject import Subject
from pytest_torchlens.audit.subject import arguments
from pytest_torchlens.audit.subject import is_floating
from pytest_torchlens.audit.subject import num_elements
from pytest_torchlens.audit.subject import place
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import Operation

_DOUBLE = "torch.float64"
_CASTS = ("copy", "double", "float", "half", "bfloat16", "setitem", "to", "type", "typeas", "where")


def doubles(subject: Subject) -> Iterator[AuditPlace]:
    """Find where float64 first appears in a model without float64 inputs."""
    if any(op.is_input_layer and op.tensor_dtype == _DOUBLE for op in subject.history.operations):
        return
    for op in subject.origins({op.label for op in subject.calls if op.tensor_dtype == _DOUBLE}):
        if op.is_output_ancestor:
            yield place(op, " and ".join(_dtypes(subject.parents(op))) or "made here")


def mixed_types(subject: Subject) -> Iterator[AuditPlace]:
    """Find operations on tensors of different floating-point types, which convert one of them."""
    for op in subject.calls:
        kinds = _dtypes([parent for parent in subject.parents(op) if is_floating(parent) and parent.tensor_shape])
        if len(kinds) > 1 and op.layer_type not in _CASTS:
            yield place(op, f"{' and '.join(kinds)} give {op.tensor_dtype.removeprefix('torch.')}")


def _dtypes(operations: list[Operation]) -> list[str]:
    return sorted({op.tensor_dtype.removeprefix("torch.") for op in operations})


HALF_MOST = 65_504.0
"""The largest number of float16."""
_OUTLIER = 1_000.0
"""Multiple of the median of all activations."""
_NEXT_TO_INFINITE = 1e37
_DEAD = 0.95
_CHOOSING = ("gather", "getitem", "indexselect", "maskedselect", "take", "takealongdim")
"""Kinds that pick elements by a tensor of indices; the elements may be equal by chance."""
_NAN = re.compile(r"\bnan\b")
_RELUS = ("relu", "relu6", "clampmin", "threshold")


def not_a_number(subject: Subject) -> Iterator[AuditPlace]:
    """Find the operations where NaN first appears."""
    bad = {label for label, numbers in subject.numbers.items() if numbers.nan > 0}
    for op in subject.origins(bad):
        yield place(op, f"{subject.numbers[op.label].nan:.2%} of its elements; {_where_from(op)}")


def _where_from(op: Operation) -> str:
    """Return where the first NaN may come from: the statistics are of activations, not of numbers and parameters."""
    if any(_NAN.search(text) for text in arguments(op).values()):
        return "NaN is among its arguments"
    parameters = f"; its parameters ({', '.join(op.parent_param_addresses)}) were not looked at"
    return f"no activation it was made from has any{parameters if op.parent_param_addresses else ''}"


def infinite(subject: Subject) -> Iterator[AuditPlace]:
    """Find the operations where infinity first appears, except infinities written in the code, as for masks."""
    bad = {label for label, numbers in subject.numbers.items() if numbers.not_finite > 0}
    for op in subject.origins(bad):
        share = subject.numbers[op.label].not_finite - subject.numbers[op.label].nan
        if share > 0 and not _is_written_down(op):
            yield place(op, f"{share:.2%} of its elements")


def constant(subject: Subject) -> Iterator[AuditPlace]:
    """Find the operations where all elements first become equal."""
    same = {
        label
        for label, numbers in subject.numbers.items()
        if numbers.minimum == numbers.maximum and not numbers.not_finite
    }
    for op in subject.origins(same):
        if op.layer_type in _CHOOSING and len(op.parent_layers) > 1:
            continue
        if op.has_input_ancestor and op.is_output_ancestor and is_floating(op) and num_elements(op) > 1:
            yield place(op, f"all {num_elements(op):,} elements are {subject.numbers[op.label].minimum:g}")


def dead_relu(subject: Subject) -> Iterator[AuditPlace]:
    """Find rectifiers whose result is almost all zero."""
    for op in subject.calls:
        numbers = subject.numbers.get(op.label)
        if numbers and op.layer_type in _RELUS and _DEAD <= numbers.zeros < 1:
            yield place(op, f"{numbers.zeros:.1%} of {num_elements(op):,} elements are zero")


def large_activations(subject: Subject) -> Iterator[AuditPlace]:
    """Find where activations become far larger than the others, and larger than float16 can hold."""
    peaks = {
        op.label: subject.numbers[op.label].magnitude
        for op in subject.calls
        if op.label in subject.numbers and is_floating(op) and op.has_input_ancestor
    }
    median = statistics.median_low(peaks.values()) if peaks else 0.0
    limit = max(HALF_MOST, _OUTLIER * median)
    for op in subject.origins({label for label, peak in peaks.items() if peak > limit}):
        if not _is_written_down(op):
            yield place(op, f"up to {peaks[op.label]:.3g}; the median operation's largest is {median:.3g}")


def _is_written_down(op: Operation) -> bool:
    """Whether an argument in the code is infinite or nearly so."""
    return any(_magnitude(text) > _NEXT_TO_INFINITE for text in arguments(op).values())


def _magnitude(text: str) -> float:
    try:
        return abs(float(text))
    except ValueError:
        return 0.0
