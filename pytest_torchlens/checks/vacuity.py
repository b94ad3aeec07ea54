"""Makes sure that a check can fail: the output must depend on the input by more than the tolerance.

With random weights some models give nearly the same output to all inputs; comparing outputs then proves nothing.  A
copy of such a model gets other weights, drawn with a seed.  The user's model stays as it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import nn

from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.checks.fills import fill_of
from pytest_torchlens.checks.fills import with_infinite_fill
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.inputs import draws_of
from pytest_torchlens.checks.inputs import outputs_on_other_values
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import in_doubles
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.checks.tolerance import rms

CLEARLY = 10.0
"""The output must change by so many times the explained error."""
_PLAINLY = 1e-3
"""A change of so much of the RMS needs no float64 reference."""
_SEED = 0


Find = Callable[[Subject], set[str]]
"""Returns the paths of the outputs that depend on the input."""


def dependent_outputs(subject: Subject) -> set[str]:
    """Return the paths of the outputs that are other ones for other inputs, by more than what rounding explains.

    Raises
    ------
    NotApplicableError
        If there is no output, or the model raises on other values.
    """
    return subject.once(("dependent outputs",), lambda: _find_dependent(subject))


def dependent_in_batch(dim: int, size: int) -> Find:
    """Return what finds the outputs that depend on the input alone or in a batch: alone some are constant."""

    def find(subject: Subject) -> set[str]:
        alone = dependent_outputs(subject)
        if len(alone) == len(subject.outputs):
            return alone
        for _ in draws_of(subject) if not alone else [subject.draw]:
            examples = Examples(subject, dim)
            plain, others = examples.outputs(size), examples.other_outputs(size)
            if found := {path for path, one in plain.items() if _changes(one, others.get(path))}:
                return alone | found
        subject.draw = subject.draw if alone else 0
        return alone

    return find


def dependent(subject: Subject, find: Find = dependent_outputs) -> Subject:
    """Return the subject if an output depends on its input, else a copy with weights drawn anew of which one does.

    Raises
    ------
    NotApplicableError
        If no output depends on the input either way.
    """
    if find(subject):
        return subject
    other = subject.once(("redrawn",), lambda: _redrawn(subject))
    other.deadline = subject.deadline
    if not find(other):
        raise NotApplicableError(f"{_CONSTANT}, nor with weights drawn anew")
    return other


_CONSTANT = "no output depends on the input by more than what rounding explains"


def _find_dependent(subject: Subject) -> set[str]:
    if not subject.outputs:
        raise NotApplicableError("its output holds no tensor to compare")
    raised: list[ModelRaisedError] = []
    for _ in draws_of(subject):
        try:
            changed = outputs_on_other_values(subject)
        except ModelRaisedError as error:
            raised.append(error)
            continue
        if found := depending(subject, changed):
            return found
    subject.draw = 0
    if raised:
        raise NotApplicableError(f"{raised[0]}, so nothing shows that its output depends on them") from raised[0]
    return set()


def depending(subject: Subject, changed: Outputs) -> set[str]:
    """Return the paths of the outputs that are other ones in another pass, by more than what rounding explains."""
    return {path for path, one in subject.outputs.items() if _depends(subject, path, one, changed.get(path))}


def _depends(subject: Subject, path: str, one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if _changes(one, other):
        return True
    if other is None or not one.is_floating_point() or torch.equal(one, other):
        return False
    return rms(in_doubles(other) - in_doubles(one)) > CLEARLY * judge(one, one, subject.exact[path]).limit


def are_plainly_other(outputs: Outputs, others: Outputs) -> bool:
    """Return whether an output is plainly another one."""
    return any(_changes(one, others.get(path)) for path, one in outputs.items())


def _changes(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Return whether two outputs differ plainly, so that no float64 reference is needed to tell."""
    if other is None or other.shape != one.shape or not (one.is_floating_point() or one.is_complex()):
        return other is None or not torch.equal(one, other)
    plain, changed = in_doubles(one), in_doubles(other)
    if (fill := fill_of(plain)) is not None:
        plain, changed = with_infinite_fill(fill, plain, changed)
        if not torch.equal(plain.isinf(), changed.isinf()):
            return True
        plain, changed = plain[plain.isfinite()], changed[changed.isfinite()]
    change, size = rms(changed - plain), rms(plain)
    if not math.isfinite(change):
        return not torch.equal(one.nan_to_num(), other.nan_to_num())
    return change > _PLAINLY * size


def _redrawn(subject: Subject) -> Subject:
    try:
        model = copy.deepcopy(subject.model)
    except Exception as error:
        raise NotApplicableError(f"{_CONSTANT}, and the model cannot be copied: {error}") from error
    redraw(model)
    other = subject.of(model)
    other.redrawn = True
    return other


def redraw(model: nn.Module) -> None:
    """Draw the weights of a model anew, so that signals neither vanish nor grow from layer to layer.

    Matrices and kernels are normal with the variance 2 / fan-in, scales are near one, biases near zero; running
    statistics leave their inputs as they are.  Scales of frozen norms are buffers.
    """
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in named_parameters(model):
            if parameter.is_floating_point():
                _draw(name, parameter, generator)
        for name, buffer in named_buffers(model):
            if name.endswith(("running_mean", "running_var")):
                buffer.fill_(float(name.endswith("var")))
            elif name.rpartition(".")[2] == "weight" and buffer.is_floating_point():
                _draw(name, buffer, generator)


def _draw(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
    if tensor.dim() > 1:
        tensor.copy_(noise * math.sqrt(2 / max(1, math.prod(tensor.shape[1:]))))
    else:
        tensor.copy_(noise * 0.1 + (0.0 if name.endswith("bias") else 1.0))
