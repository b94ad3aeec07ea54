"""Compares the gradients of a float64 copy of a model with differences, by ``torch.autograd.gradcheck``."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError
from torch.autograd.gradcheck import gradcheck

from pytest_torchlens.capture.calls import Group
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.record import seed_all
from pytest_torchlens.checks import results
from pytest_torchlens.checks.exact import in_float64
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Failure

OTHER_THAN_DIFFERENCES = "is not what differences give in float64"
_ADVICE = "look at the backward of the custom autograd functions: it is not the derivative of their forward"


def gradcheck_failure(subject: Subject, names: list[str], unseen: list[str]) -> Failure | None:
    """Return that a gradient is not what differences give; add to `unseen` why it cannot be told."""
    generators = Generators()
    try:
        _check(subject, names)
    except GradcheckError as error:
        return _failure(subject.history, names, str(error))
    except NotApplicableError:
        raise
    except Exception as error:  # noqa: BLE001 - a copy in float64 may raise anything
        unseen.append(f"gradcheck: a copy in float64 raised {type(error).__name__}: {error}")
    finally:
        generators.restore()
    return None


def _check(subject: Subject, names: list[str]) -> None:
    model = copy.deepcopy(subject.model).double()
    args, kwargs = substitute(subject.args, in_float64), substitute(subject.kwargs, in_float64)
    parameters = dict(named_parameters(model))
    leaves = tuple(parameters[name].detach().requires_grad_() for name in names)

    def outputs(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        subject.check_time()
        seed_all(subject.seed or 0)
        given: dict[str, Any] = dict(zip(names, values, strict=True))
        output = torch.func.functional_call(model, given, args, kwargs)
        return tuple(tensor for _, tensor in walk(output) if tensor.requires_grad)

    gradcheck(outputs, leaves, fast_mode=True, atol=1e-4, rtol=1e-3)


def _failure(history: ModelHistory, names: list[str], error: str) -> Failure:
    found = re.search(r"input (\d+)", error)
    name = f" of {names[int(found[1])]!r}" if found and int(found[1]) < len(names) else ""
    first = error.strip().splitlines()[0]
    what = f"the gradient{name} {OTHER_THAN_DIFFERENCES}"
    number, function = _custom(history)
    cause = f"the first custom autograd function is {function}" if function else first
    return results.failure_at(history, number, what, _ADVICE, cause=cause)


def _custom(history: ModelHistory) -> tuple[int | None, str]:
    """Return the first call inside a custom autograd function, and the name of that."""
    for number, call in enumerate(history.recording.calls):
        group: Group | None = call.group
        while group is not None:
            if group.custom:
                return number, group.name
            group = group.parent
    return None, ""
