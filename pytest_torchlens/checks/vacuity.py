"""Makes sure that a check can fail: the output must depend on the input by more than the tolerance.

With random weights some models give nearly the same output to all inputs; comparing outputs then proves nothing.  A
copy of such a model gets other weights, drawn with a seed.  The user's model stays as it is.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.checks.inputs import other_inputs
from pytest_torchlens.checks.subject import OTHER_VALUES
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import judge

CLEARLY = 10.0
"""The output must change by so many times the explained error."""
_PLAINLY = 1e-3
"""A change of so much of the RMS needs no float64 reference."""
_SEED = 0


def dependent(subject: Subject) -> Subject:
    """Return the subject if its output depends on its input, else a copy with weights drawn anew whose output does.

    Raises
    ------
    NotApplicableError
        If no output depends on the input either way.
    """
    if subject.dependent is None:
        subject.dependent = subject if depends(subject) else _redrawn(subject)
    subject.dependent.deadline = subject.deadline
    return subject.dependent


def depends(subject: Subject) -> bool:
    """Return whether an output is another one for other inputs, by more than what rounding explains."""
    return bool(dependent_outputs(subject))


def dependent_outputs(subject: Subject) -> set[str]:
    """Return the paths of the outputs that depend on the input."""
    if subject.dependent_outputs is None:
        subject.dependent_outputs = _find_dependent(subject)
    return subject.dependent_outputs


def _find_dependent(subject: Subject) -> set[str]:
    if not subject.outputs:
        raise NotApplicableError("its output holds no tensor to compare")
    try:
        changed = subject.once(
            OTHER_VALUES, lambda: subject.call(*other_inputs(subject), way="on other values of its inputs")
        )
    except ModelRaisedError as error:
        raise NotApplicableError(f"{error}, so nothing shows that its output depends on them") from error
    return {path for path in subject.outputs if _differs(subject, path, changed.get(path))}


def _differs(subject: Subject, path: str, other: torch.Tensor | None) -> bool:
    one = subject.outputs[path]
    if other is None or other.shape != one.shape or not (one.is_floating_point() or one.is_complex()):
        return other is None or not torch.equal(one, other)
    change, size = _rms(other.double() - one.double()), _rms(one.double())
    if not math.isfinite(change) or change > _PLAINLY * size:
        return not torch.equal(one.nan_to_num(), other.nan_to_num())
    return change > 0 and change > CLEARLY * judge(one, one, subject.exact[path]).limit


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.abs().square().mean().sqrt()) if tensor.numel() else 0.0


def _redrawn(subject: Subject) -> Subject:
    constant = "no output depends on the input by more than what rounding explains"
    try:
        model = copy.deepcopy(subject.model)
    except Exception as error:
        raise NotApplicableError(f"{constant}, and the model cannot be copied: {error}") from error
    redraw(model)
    other = subject.of(model)
    if not depends(other):
        raise NotApplicableError(f"{constant}, nor with weights drawn anew")
    other.redrawn = True
    return other


def redraw(model: nn.Module) -> None:
    """Draw the weights of a model anew, so that signals neither vanish nor grow from layer to layer.

    Matrices and kernels are normal with the variance 2 / fan-in, scales are near one, biases near zero; running
    statistics leave their inputs as they are.
    """
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in named_parameters(model):
            if parameter.is_floating_point():
                _draw(name, parameter, generator)
        for name, buffer in named_buffers(model):
            if name.endswith(("running_mean", "running_var")):
                buffer.fill_(float(name.endswith("var")))


def _draw(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
    if parameter.dim() > 1:
        parameter.copy_(noise * math.sqrt(2 / max(1, math.prod(parameter.shape[1:]))))
    else:
        parameter.copy_(noise * 0.1 + (0.0 if name.endswith("bias") else 1.0))
