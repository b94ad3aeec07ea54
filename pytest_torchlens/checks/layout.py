"""The check ``layout``: inputs in another memory layout give the same, but for rounding.

Values and shapes stay; strides change: channels last (the weights, too, on a copy), not contiguous, and expanded, where
all examples are one in memory.  The last two come together, to spare a pass, and apart if that does not pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn

from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.compare import passed_all
from pytest_torchlens.checks.compare import raised_when_recorded
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.inputs import inputs_of
from pytest_torchlens.checks.inputs import with_inputs
from pytest_torchlens.checks.results import failed
from pytest_torchlens.checks.results import failure_of_raise
from pytest_torchlens.checks.results import witness_raise
from pytest_torchlens.checks.side_by_side import Fit
from pytest_torchlens.checks.side_by_side import first_of
from pytest_torchlens.checks.side_by_side import whole
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.checks.vacuity import dependent_outputs
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus

NAME = "layout"
_ADVICE = (
    "use reshape in place of view, and read no strides or memory but through torch's functions; a kernel that needs a "
    "dense layout gets x.contiguous()"
)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def run(subject: Subject, dim: int = 0) -> CheckResult:
    """Compare the outputs for each layout that the inputs can have with those of the plain run."""
    subject = dependent(subject)
    found: list[CheckResult] = []
    for compared in (_channels_last, _other_strides):
        for result in compared(subject, dim):
            if result.status is not CheckStatus.PASSED:
                return result
            found.append(result)
    if not found:
        raise NotApplicableError("no input has another layout: it needs a tensor with two dimensions or more")
    return passed_all(NAME, found)


def _compared(
    reference: Subject,
    runner: Subject,
    given: Arguments,
    way: str,
    fit: Fit = whole,
    depend: set[str] | None = None,
) -> CheckResult:
    """Return the result of one layout; `runner` is the reference, or a copy of its model in another layout."""
    try:
        outputs = runner.call(*given, way=way)
    except ModelRaisedError as error:
        recorded = raised_when_recorded(runner, error, given)
        witness_raise(reference, recorded, fit, alive=runner)
        failure = failure_of_raise(reference.history, recorded, _ADVICE)
        return failed(NAME, failure, redrawn=reference.redrawn)
    return compare(NAME, reference, outputs, lambda: runner.record(*given, way=way), way, _ADVICE, fit, depend)


def _channels_last(subject: Subject, dim: int) -> Iterator[CheckResult]:
    if not any(_has_channels(tensor) for tensor in inputs_of(subject).values()):
        return
    given = with_inputs(subject, _in_channels_last)
    try:
        model = _copy_in_channels_last(subject.model)
    except Exception:  # noqa: BLE001 - a model may hold what cannot be copied, or kernels of five dimensions
        yield _compared(subject, subject, given, "with inputs in channels_last")
    else:
        yield _compared(subject, subject.of(model), given, "with inputs and weights in channels_last")


def _copy_in_channels_last(model: nn.Module) -> nn.Module:
    """Return a copy with weights in channels_last; kernels are copied to that layout at once, as they are large."""
    kernels = [one for _, one in named_parameters(model) if type(one) is nn.Parameter and one.dim() == _KERNEL]
    memo = {
        id(one): nn.Parameter(one.detach().clone(memory_format=torch.channels_last), one.requires_grad)
        for one in kernels
    }
    return copy.deepcopy(model, memo).to(memory_format=torch.channels_last)


_KERNEL = 4
"""Dimensions of a kernel that channels_last is meant for."""


def _has_channels(tensor: torch.Tensor) -> bool:
    return tensor.dim() in _CHANNELS_LAST and tensor.is_floating_point()


def _in_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    if not _has_channels(tensor):
        return tensor
    return tensor.detach().clone(memory_format=_CHANNELS_LAST[tensor.dim()])


def _other_strides(subject: Subject, dim: int) -> Iterator[CheckResult]:
    """Compare inputs that are both not contiguous and expanded; one by one, if that does not pass."""
    both = _expanded_beside_one(subject, dim)
    if both is not None and both.status is CheckStatus.PASSED:
        yield both
        return
    yield from _not_contiguous(subject)
    yield from _expanded(subject, dim)


def _expanded_beside_one(subject: Subject, dim: int) -> CheckResult | None:
    """Compare a batch whose examples are one in memory with the example alone; None if there are several, or none."""
    try:
        examples = Examples(subject, dim)
    except NotApplicableError:
        return None
    if examples.count > 1:
        return None
    given = examples.expanded(2, _with_gaps)
    return _compared(subject, subject, given, "with inputs that are not contiguous and expanded", first_of(2))


def _not_contiguous(subject: Subject) -> Iterator[CheckResult]:
    if any(tensor.dim() > 1 for tensor in inputs_of(subject).values()):
        given = with_inputs(subject, _with_gaps)
        yield _compared(subject, subject, given, "with inputs that are not contiguous")


def _with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values with the last two dimensions swapped in memory, and a gap after each row."""
    if tensor.dim() <= 1 or tensor.layout is not torch.strided:
        return tensor
    swapped = tensor.detach().transpose(-1, -2)
    memory = torch.zeros(*swapped.shape[:-1], swapped.shape[-1] + 1, dtype=tensor.dtype, device=tensor.device)
    memory[..., :-1] = swapped
    return memory[..., :-1].transpose(-1, -2)


def _expanded(subject: Subject, dim: int) -> Iterator[CheckResult]:
    """Compare a batch whose examples are one in memory with the same batch in memory of its own."""
    try:
        examples = Examples(subject, dim)
        reference = subject.with_inputs(*examples.repeated(2))
        _ = reference.outputs
    except (NotApplicableError, ModelRaisedError):  # it has no batch, or takes none of two
        return
    way, depend = "with inputs that are expanded", dependent_outputs(subject)
    yield _compared(reference, reference, examples.expanded(2), way, depend=depend)
