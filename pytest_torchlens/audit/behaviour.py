"""Rules about what else a pass depends on: modes, chance, and values that Python was told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from pytest_torchlens.audit.subject import Subject
from pytest_torchlens.audit.subject import arguments
from pytest_torchlens.audit.subject import place
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import Operation

_DROPOUTS = ("dropout", "alphadropout", "featuredropout", "featurealphadropout")
_NO_ORDER = frozenset(
    "bincount cumsum histc indexadd indexcopy indexput kthvalue median put scatteradd scatterreduce".split()
)
"""Kinds that PyTorch lists as nondeterministic on a GPU (torch.use_deterministic_algorithms)."""


def train_mode(subject: Subject) -> Iterator[AuditPlace]:
    """Find dropout and batch norm that act as in training, in a model in eval mode."""
    if subject.facts is None or subject.facts.is_training:
        return
    for op in subject.calls:
        if op.function_is_random and op.layer_type in _DROPOUTS:
            yield place(op, "drops at random" + _of_module(subject, op))
        elif op.layer_type == "batchnorm" and _uses_batch(op):
            yield place(op, "normalizes by this batch alone" + _of_module(subject, op))


def _uses_batch(op: Operation) -> bool:
    """Whether a batch norm with running statistics does not use them."""
    given = arguments(op)
    return "True" in (given.get("5"), given.get("training")) and given.get("1") != "None"


def _of_module(subject: Subject, op: Operation) -> str:
    address = (op.containing_module_origin or "").partition(":")[0]
    is_on = subject.facts is not None and address in subject.facts.in_training
    return f"; module {address} is in train mode" if is_on else "; its argument says so, whatever the mode"


def random(subject: Subject) -> Iterator[AuditPlace]:
    """Find random numbers in the outputs of a model in eval mode, but for dropout."""
    if subject.facts is None or subject.facts.is_training:
        return
    for op in subject.calls:
        if op.function_is_random and op.is_output_ancestor and op.layer_type not in _DROPOUTS:
            yield place(op, "draws random numbers that reach an output")


def unordered(subject: Subject) -> Iterator[AuditPlace]:
    """Find operations whose result on a GPU depends on the order that its threads come in."""
    for op in subject.calls:
        if op.layer_type in _NO_ORDER and op.tensor_device.startswith("cuda") and op.is_output_ancestor:
            yield place(op, f"{op.func_applied_name} on {op.tensor_device}")


def decisions(subject: Subject) -> Iterator[AuditPlace]:
    """Find lines where a tensor's value decides what code runs."""
    yield from _by_line(subject, lambda escape: escape.is_branching, _decision)


def _decision(escape: EscapeRecord) -> str:
    asked = f"{escape.statement} {escape.condition}".strip() if escape.statement != "expression" else escape.function
    return f"asked by: {asked}" + (f" (went to {escape.branch})" if escape.branch else "")


def into_python(subject: Subject) -> Iterator[AuditPlace]:
    """Find lines where tensors' values become numbers or arrays of Python's."""
    yield from _by_line(subject, lambda escape: not escape.is_condition, lambda escape: f"by {escape.function}")


def _by_line(
    subject: Subject, is_wanted: Callable[[EscapeRecord], bool], say: Callable[[EscapeRecord], str]
) -> Iterator[AuditPlace]:
    """Yield a place for each line, however often it ran."""
    wanted: Iterable[EscapeRecord] = [escape for escape in subject.history.escapes if is_wanted(escape)]
    firsts = {escape.source_line: escape for escape in reversed(list(wanted))}
    counts = Counter(escape.source_line for escape in wanted)
    for line in counts:
        escape, times = firsts[line], f", {counts[line]} times" if counts[line] > 1 else ""
        yield AuditPlace(operation=escape.operation, source_line=line, detail=f"{say(escape)}{times}")
