"""The check ``threads``: one thread and many give the same, but for rounding."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.compare import passed_all
from pytest_torchlens.checks.inputs import inputs_of
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus

NAME = "threads"
_ADVICE = (
    "an operation that gives another result with other threads, beyond rounding, has a race or reads memory that "
    "nothing wrote: replace it, or report it to its library"
)


def run(subject: Subject) -> CheckResult:
    """Compare the outputs with one thread, and with as many as there are processors, with those of the plain run."""
    if any(not tensor.is_cpu for tensor in inputs_of(subject).values()):
        raise NotApplicableError("the model does not run on the CPU")
    subject = dependent(subject)
    results = [_with_threads(subject, count) for count in _counts()]
    wrong = next((result for result in results if result.status is not CheckStatus.PASSED), None)
    if wrong is not None:
        return wrong
    return passed_all(NAME, results, [f"{count} thread{'s' * (count > 1)}" for count in _counts()])


def _counts() -> list[int]:
    """Return the numbers of threads to try beside that of the plain run."""
    return [count for count in (1, max(2, os.cpu_count() or 2)) if count != torch.get_num_threads()]


def _with_threads(subject: Subject, count: int) -> CheckResult:
    way = f"with {count} thread{'s' * (count > 1)}"

    def record() -> ModelHistory:
        with threads(count):
            return subject.record(way=way)

    with threads(count):
        outputs = subject.call(way=way)
    return compare(NAME, subject, outputs, record, way, _ADVICE)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads of an operation, and restore it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
