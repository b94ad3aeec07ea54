"""The check ``batch-size``: an example gives the same alone and in a batch, but for rounding."""

from __future__ import annotations

from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.inputs import first_example
from pytest_torchlens.checks.side_by_side import first_of
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.checks.vacuity import dependent_in_batch
from pytest_torchlens.records import CheckResult

_ADVICE = (
    "let no operation depend on the other examples or on their number: a size read from shape[0], a mean over the "
    "batch, a reshape that mixes examples; batch norm in train mode does"
)


def run(subject: Subject, size: int = 2, dim: int = 0) -> CheckResult:
    """Compare the first example alone with the same example in a batch of `size`."""
    find = dependent_in_batch(dim, size)
    alone = dependent(first_example(subject, dim), find)
    if alone.draws:
        raise NotApplicableError(f"the model draws random numbers ({alone.draws}), and others for another batch")
    examples, way = Examples(alone, dim), f"in a batch of {size}"
    outputs, batch = examples.outputs(size), examples.batch(size)
    return compare(
        "batch-size",
        alone,
        outputs,
        lambda: alone.record(*batch, way=way),
        way,
        _ADVICE,
        fit=first_of(size),
        depend=find(alone),
    )
