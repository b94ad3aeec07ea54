"""Rules about what training reaches."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_torchlens.audit.subject import Subject
from pytest_torchlens.audit.subject import is_floating
from pytest_torchlens.audit.subject import place
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import Operation

_CUTS = ("detach", "data")
"""Kinds of operation that no gradient goes through."""


def frozen(subject: Subject) -> Iterator[AuditPlace]:
    """Find parameters that are not trained, where others of the model are: one place a module."""
    facts = subject.facts
    if facts is None or not facts.trainable:
        return
    owners: dict[str, list[str]] = {}
    for name in facts.parameters.keys() - facts.trainable:
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    for owner in sorted(owners):
        sizes = [facts.parameters[name] for name in owners[owner]]
        detail = f"{len(sizes):,} of its parameters, {sum(sizes):,} elements"
        yield AuditPlace(module=owner, source_line=facts.line_around(owner), detail=detail)


def unreached(subject: Subject) -> Iterator[AuditPlace]:
    """Find where trainable parameters are first read, and no gradient can come from the outputs."""
    left = set(subject.facts.trainable if subject.facts else ())
    reached = _reached(subject)
    names = {name for op in subject.history.operations if op.label in reached for name in op.parent_param_addresses}
    left -= names
    for op in subject.calls:
        cut = [name for name in op.parent_param_addresses if name in left]
        if cut and op.is_output_ancestor:
            yield place(op, ", ".join(cut))
            left.difference_update(cut)


def _reached(subject: Subject) -> set[str]:
    """Return the labels of operations that a gradient of some output comes to."""
    outputs = [op for op in subject.history.operations if op.is_output_layer]
    is_followed = any(op.gradfunc_name for op in subject.calls)
    waiting, reached = list(outputs), {op.label for op in outputs}
    while waiting:
        for parent in subject.parents(waiting.pop()):
            if parent.label not in reached and _lets_through(parent, is_followed):
                reached.add(parent.label)
                waiting.append(parent)
    return reached


def _lets_through(op: Operation, is_followed: bool) -> bool:
    """Whether an operation has a gradient; where autograd was on it says so itself."""
    if is_followed and op.call_id >= 0:
        return bool(op.gradfunc_name)
    return is_floating(op) and op.layer_type not in _CUTS
