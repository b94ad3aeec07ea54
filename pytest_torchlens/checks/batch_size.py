"""The check ``batch-size``: an example gives the same alone and in a batch, but for rounding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pytest_torchlens.checks.batch_rank import Lists
from pytest_torchlens.checks.batch_rank import failure_of_lost_dim
from pytest_torchlens.checks.batch_rank import without_rows
from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.compare import passed_all
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.inputs import first_example
from pytest_torchlens.checks.results import failed
from pytest_torchlens.checks.side_by_side import first_of
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.checks.vacuity import dependent_in_batch
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus

NAME = "batch-size"
_ADVICE = (
    "let no operation depend on the other examples or on their number: a size read from shape[0], a mean over the "
    "batch, a reshape that mixes examples; batch norm in train mode does"
)


def run(subject: Subject, size: int = 2, dim: int = 0) -> CheckResult:
    """Compare the first and the last example of a batch of `size` with the same example alone."""
    find = dependent_in_batch(dim, size)
    alone = dependent(first_example(subject, dim), find)
    if alone.draws:
        raise NotApplicableError(f"the model draws random numbers ({alone.draws}), and others for another batch")
    examples, depend = Examples(alone, dim), find(alone)
    outputs, batch = examples.outputs(size), examples.batch(size)
    if failure := failure_of_lost_dim(alone, batch, outputs, size):
        return failed(NAME, failure, redrawn=alone.redrawn)
    lists = Lists(alone.outputs, outputs, size)
    left_out = without_rows(alone.outputs, outputs, lists)
    found: list[CheckResult] = []
    for row in (0, size - 1):
        one = examples.last_alone(size) if row else alone
        way = f"as the last in a batch of {size}" if row else f"in a batch of {size}"
        record, fit = partial(alone.record, *batch, way=way), first_of(size, row)
        result = compare(NAME, one, lists.of_row(outputs, row), record, way, _ADVICE, fit, depend, left_out)
        if result.status is not CheckStatus.PASSED:
            return result
        found.append(result)
    return replace(passed_all(NAME, found), compared=found[0].compared)
