"""What must hold for a generated program: the traced run equals a plain one, and the verdict is right."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_torchlens import log_forward_pass
from pytest_torchlens import validate_model_activations
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.record import seed_all
from pytest_torchlens.records import Status
from pytest_torchlens.records import Unproven
from pytest_torchlens.validate import Validation
from tests.validate.generated.model import build
from tests.validate.generated.program import Program
from tests.validate.generated.program import places

SEED = 6


def plain(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    seed_all(SEED)
    return model(*args, **kwargs)


def traced(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    seed_all(SEED)
    return log_forward_pass(model, args, kwargs).recording.output


def outcome(program: Program, run: Callable[..., Any]) -> dict[str, Any]:
    """Run a fresh model; return everything that a user could see afterwards."""
    model, args, kwargs = build(program)
    with program.in_mode():
        output = run(model, args, kwargs)
    found = state(model, args, kwargs) | {"output": {path: facts(tensor) for path, tensor in walk(output)}}
    return found | {"gradients": _gradients(model, args, output)}


def state(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a model, of its arguments, and of the random generators."""
    tensors = [*model.state_dict(keep_vars=True).items(), *walk(args), *walk(kwargs), ("table", model.table)]
    return {
        "tensors": {path: facts(tensor) for path, tensor in tensors},
        "random": fingerprint(torch.get_rng_state()),
        "modules": [(module.training, sorted(module.__dict__)) for module in model.modules()],
        "grads": {name: known(parameter.grad) for name, parameter in model.named_parameters()},
    }


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    flags = (tensor.requires_grad, tensor.is_inference(), tensor.is_conj(), tensor.is_neg())
    return fingerprint(tensor), tensor.dtype, tensor.shape, strides, flags


def known(tensor: torch.Tensor | None) -> str | None:
    return None if tensor is None else fingerprint(tensor)


def _gradients(model: nn.Module, args: tuple[Any, ...], output: Any) -> list[str | None]:
    """Return the gradients of the outputs, or the error that PyTorch raises."""
    wanted = [t for t in (args[0], *model.parameters()) if t.requires_grad]
    try:
        sums = [t.abs().sum() for _, t in walk(output) if t.grad_fn is not None and t.layout is torch.strided]
        if not sums:
            return []
        return [known(one) for one in torch.autograd.grad(sum(sums), wanted, allow_unused=True)]
    except RuntimeError as error:
        return [re.sub(r"0x[0-9a-f]+", "", str(error))]


@dataclasses.dataclass(frozen=True)
class Checked:
    """What came of a program without a fault: all that is wrong, its status, and how many operations were recorded."""

    wrong: tuple[str, ...]
    status: Status
    operations: int


def check(program: Program) -> Checked:
    """Return what is wrong with how a program is recorded and judged; nothing should be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validation, changed = validated(program)
        verdict = validation.verdict
        wrong = [
            *_differences(outcome(program, plain), outcome(program, traced), "the traced run"),
            *changed,
            *(f"{part.name}: {f.operation}: {f.message} ({f.cause})" for part in verdict.parts for f in part.failures),
            *(one.words for one in verdict.unproven if not explained(program, one, validation)),
        ]
    if verdict.status not in (Status.PASSED, Status.UNPROVEN) and not wrong:
        wrong.append(verdict.words)
    return Checked(tuple(wrong), verdict.status, len(validation.history.recording.calls))


def validated(program: Program) -> tuple[Validation, list[str]]:
    """Validate a program in its mode; return the verdict, and which state of the model is another afterwards."""
    model, args, kwargs = build(program)
    before = state(model, args, kwargs)
    with program.in_mode():
        validation = validate_model_activations(model, args, kwargs, random_seed=SEED)
    return validation, _differences(before, state(model, args, kwargs), "validation")


def _differences(one: dict[str, Any], other: dict[str, Any], what: str) -> list[str]:
    return [f"{what} changed {name}: {_first(one[name], other[name])}" for name in one if other[name] != one[name]]


def _first(one: Any, other: Any) -> str:
    if isinstance(one, dict) and one.keys() == other.keys():
        return next(f"{key}: {one[key]}, {other[key]}" for key in one if one[key] != other[key])
    return f"{one}, {other}"


# -- what docs/validation.md says is not shown ---------------------------------------------------------------------

NUMBERS = frozenset(["number_in_python", "while_small", "array_over_memory"])
BY_WAY_OF_PYTHON = ("handed to Python", "handed an input's values to Python", "slightly other")


def explained(program: Program, unproven: Unproven, validation: Validation) -> bool:
    """Return whether a second witness agrees that something could not be shown."""
    if "depends on no input" in unproven.message:
        return bool(names_in(program) & (NUMBERS | {"branch"})) or _is_independent(program, unproven.message)
    if any(text in unproven.message for text in BY_WAY_OF_PYTHON):
        return bool(names_in(program) & NUMBERS)
    if "inside autograd" in unproven.message:
        names = names_in(program)
        return "gradient_by_code" in names or {"checkpointed", "inner_gradient"} <= names
    if "no operation ran" in unproven.message:
        return not validation.history.recording.calls and not _dispatched(program)
    return False


def names_in(program: Program) -> set[str]:
    """Return the names of all steps of a program."""
    found = set()
    for first, *rest in places(program.steps):
        one = program.steps[first]
        for place in rest:
            one = one.body[place]
        found.add(one.name)
    return found


def _is_independent(program: Program, message: str) -> bool:
    """Return whether an output stays the same with other inputs, unless they lead to another shape."""
    path = named[1] if (named := re.search("output '(.*)' depends", message)) else ""
    outputs = [dict(walk(_output_with(program, shift))) for shift in (0.0, 0.011, -0.37)]
    return len({facts(output[path])[0] for output in outputs if path in output}) == 1


def _output_with(program: Program, shift: float) -> Any:
    model, args, kwargs = build(program)
    with torch.no_grad():
        for tensor in args:
            tensor.add_(shift)
    with program.in_mode():
        return plain(model, args, kwargs)


class _Counted(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _dispatched(program: Program) -> int:
    model, args, kwargs = build(program)
    with program.in_mode(), _Counted() as counted:
        model(*args, **kwargs)
    return counted.count
