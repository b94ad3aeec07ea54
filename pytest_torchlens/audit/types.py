"""Rules about the types of numbers."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_torchlens.audit.subject import Subject
from pytest_torchlens.audit.subject import is_floating
from pytest_torchlens.audit.subject import place
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import Operation

_DOUBLE = "torch.float64"
_CASTS = ("copy", "double", "float", "half", "bfloat16", "setitem", "to", "type", "typeas", "where")


def doubles(subject: Subject) -> Iterator[AuditPlace]:
    """Find where float64 comes into a model that is given none."""
    if any(op.is_input_layer and op.tensor_dtype == _DOUBLE for op in subject.history.operations):
        return
    for op in subject.origins({op.label for op in subject.calls if op.tensor_dtype == _DOUBLE}):
        if op.is_output_ancestor:
            yield place(op, " and ".join(_dtypes(subject.parents(op))) or "made here")


def mixed(subject: Subject) -> Iterator[AuditPlace]:
    """Find operations on tensors of different floating-point types, which convert one of them each time."""
    for op in subject.calls:
        kinds = _dtypes([parent for parent in subject.parents(op) if is_floating(parent) and parent.tensor_shape])
        if len(kinds) > 1 and op.layer_type not in _CASTS:
            yield place(op, f"{' and '.join(kinds)} give {op.tensor_dtype.removeprefix('torch.')}")


def _dtypes(operations: list[Operation]) -> list[str]:
    return sorted({op.tensor_dtype.removeprefix("torch.") for op in operations})
