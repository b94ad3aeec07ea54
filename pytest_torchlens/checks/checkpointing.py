"""The check ``checkpointing``: gradients with activation checkpointing equal those without.

A copy of the model runs in train mode, as checkpoints work there only, with the same seed: once as it is and once with
its switch on.  What rounding explains is what a move of each parameter by one unit in its last place does.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.checks import results
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.compare import failure_at_place
from pytest_torchlens.checks.held import listed
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.output_gradients import moved
from pytest_torchlens.checks.output_gradients import weights_of
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.side_by_side import Place
from pytest_torchlens.checks.side_by_side import part
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import outputs_of
from pytest_torchlens.checks.tolerance import is_plainly_explained
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

NAME = "checkpointing"
_WAY = "with checkpointing"
_METHODS = (
    "activation_checkpointing_enable",
    "gradient_checkpointing_enable",
    "enable_gradient_checkpointing",
    "set_grad_checkpointing",
)
_CLAIMS = ("supports_gradient_checkpointing", "_supports_gradient_checkpointing")
"""Attributes with which the classes of transformers and diffusers say whether their models can do it."""
_FLAGS = (
    "gradient_checkpointing",
    "grad_checkpointing",
    "use_checkpoint",
    "use_checkpointing",
    "use_grad_checkpointing",
    "use_gradient_checkpointing",
    "use_activation_checkpointing",
    "checkpoint_activations",
    "activation_checkpointing",
    "checkpointing",
    "with_cp",
    "memory_efficient",
)
"""Attributes that models switch it with, where they have no method."""
_CONFIGS = ("config", "cfg")
"""Attributes with objects that hold the settings of a model."""
_MOVES = 4
_ADVICE = (
    "what a checkpoint runs again must compute the same: leave preserve_rng_state on, keep no state between the two "
    "runs, and read nothing that changes before the backward pass"
)
_ADVICE_MISSING = (
    "a reentrant checkpoint passes gradients on only if a tensor among its arguments requires them: set "
    "use_reentrant=False"
)
_CAUSE = (
    "of the parameters whose gradient differs this one is read last: what is run again before it, or there, differs"
)


def run(subject: Subject) -> CheckResult:
    """Compare the gradients of all parameters, and the outputs, with and without checkpointing."""
    if not any(tensor.requires_grad for _, tensor in named_parameters(subject.model)):
        raise NotApplicableError("no parameter is trainable")
    try:
        plain, other = (subject.of(copy.deepcopy(subject.model)) for _ in range(2))
    except Exception as error:
        raise NotApplicableError(f"the model cannot be copied: {type(error).__name__}: {error}") from error
    with torch.inference_mode(mode=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Comparison(plain, other).result()


def _switch_on(model: nn.Module) -> str:
    """Switch checkpointing on, and return what the switch is called.

    Raises
    ------
    NotApplicableError
        If the model has no switch, or it does not work.
    """
    if _refuses(model):
        raise NotApplicableError(f"{type(model).__name__} says that it does not support gradient checkpointing")
    for name in _METHODS:
        if callable(method := getattr(model, name, None)):
            try:
                method()
            except Exception as error:
                raise NotApplicableError(f"{name}() raised {type(error).__name__}: {error}") from error
            return f"{name}()"
    holders = [holder for module in _able(model) for holder in (module, *_configs_of(module))]
    found = [(holder, name) for holder in holders for name in _FLAGS if _is_off(holder, name) and _set(holder, name)]
    if not found:
        raise NotApplicableError(
            f"the model has no switch for it: no {', '.join(_METHODS)}, and no attribute of that name"
        )
    return ", ".join(dict.fromkeys(f"attribute {name!r}" for _, name in found))


def _configs_of(module: nn.Module) -> list[Any]:
    """Return the objects in which a module keeps its settings, if it has some."""
    return [vars(module)[name] for name in _CONFIGS if hasattr(vars(module).get(name), "__dict__")]


def _is_off(holder: Any, name: str) -> bool:
    """Return whether an object, or its class, has an attribute that is False; a property that can be set counts."""
    kept = inspect.getattr_static(holder, name, None)
    return kept is False or (
        isinstance(kept, property) and kept.fset is not None and getattr(holder, name, None) is False
    )


def _set(holder: Any, name: str) -> bool:
    """Set an attribute, and return whether it can be."""
    try:
        setattr(holder, name, True)
    except Exception:  # noqa: BLE001 - a frozen object, or whatever a property raises
        return False
    return True


def _refuses(module: nn.Module) -> bool:
    return any(getattr(module, name, None) is False for name in _CLAIMS)


def _able(model: nn.Module) -> list[nn.Module]:
    """Return the modules that neither say that they do not support it nor are inside one that does."""
    refusing = {id(part) for _, module in named_modules(model) if _refuses(module) for part in module.modules()}
    return [module for _, module in named_modules(model) if id(module) not in refusing]


# -- passes ----------------------------------------------------------------------------------------------------------


@dataclass
class _Pass:
    """A pass in train mode and its backward pass."""

    outputs: Outputs = field(default_factory=dict)
    gradients: Outputs = field(default_factory=dict)
    statistics: Outputs = field(default_factory=dict)
    ran_forward: bool = False
    calls: int = 0
    """Number of functions and modules that were called in the backward pass."""


def _plain(subject: Subject) -> tuple[Arguments, _Pass]:
    """Return a pass without checkpointing, and its inputs: a batch of two where train mode does not take one."""
    given = Arguments(subject.args, subject.kwargs)
    try:
        return given, _pass(subject, given)
    except ModelRaisedError as error:
        reason = NotApplicableError(f"in train mode {error}")
    try:
        given = Examples(subject).batch(2)
        return given, _pass(subject, given)
    except ModelRaisedError:
        raise reason from None


def _pass(
    subject: Subject,
    given: Arguments,
    seed: int | None = None,
    only: frozenset[str] = frozenset(),
    way: str = "",
    found: _Pass | None = None,
) -> _Pass:
    """Return a pass, or fill `found`; with `seed` of parameters that are moved by one unit in their last place.

    Gradients are those of the outputs at the paths `only`, by default of all.
    """
    found = _Pass() if found is None else found

    def function(*args: Any, **kwargs: Any) -> Outputs:
        subject.model.train()
        if seed is not None:
            _move(subject.model, seed)
        _differentiate(subject.model, found, only, args, kwargs)
        return found.gradients

    with subject.runs(*given, way=way, function=function) as call:
        parameters = [(tensor, tensor.detach().clone()) for _, tensor in named_parameters(subject.model)]
        try:
            call()
        finally:
            with torch.no_grad():
                for tensor, former in parameters:
                    tensor.grad = None
                    tensor.copy_(former)
    return found


def _move(model: nn.Module, seed: int) -> None:
    with torch.no_grad():
        parameters = dict(named_parameters(model))
        for name, tensor in moved(parameters, seed).items():
            parameters[name].copy_(tensor)


def _differentiate(model: nn.Module, found: _Pass, only: frozenset[str], args: Any, kwargs: Any) -> None:
    for _, parameter in named_parameters(model):
        parameter.grad = None
    with torch.enable_grad():
        output = model(*args, **kwargs)
        found.ran_forward = True
        tensors = [tensor for path, tensor in walk(output) if tensor.requires_grad and (not only or path in only)]
        found.outputs = outputs_of(output)
        if tensors:
            with _counted(found):
                torch.autograd.backward(tensors, [weights_of(tensor, seed) for seed, tensor in enumerate(tensors)])
    gradients = {name: tensor.grad for name, tensor in named_parameters(model)}
    found.gradients = {name: grad.detach().clone() for name, grad in gradients.items() if grad is not None}
    found.statistics = {name: tensor.detach().clone() for name, tensor in named_buffers(model)}


class _Counting(TorchFunctionMode):
    def __init__(self, found: _Pass) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._found.calls += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def _counted(found: _Pass) -> Iterator[None]:
    """Count functions and modules that are called; functions only in this thread, and autograd has others for a GPU."""

    def note(module: nn.Module, inputs: Any) -> None:
        found.calls += 1

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        with _Counting(found):
            yield
    finally:
        handle.remove()


def _recorded(subject: Subject, given: Arguments) -> ModelHistory:
    with torch.enable_grad(), subject.recordings(*given) as record:
        subject.model.train()
        return record()


# -- judgement -------------------------------------------------------------------------------------------------------


class _Comparison:
    """Compares two copies of a model: one as it is, and one whose switch is to be on."""

    def __init__(self, subject: Subject, other: Subject) -> None:
        self._subject = subject
        self._other = other
        self._only: frozenset[str] = frozenset()
        """Paths of the outputs that both have; empty if these are all."""

    def result(self) -> CheckResult:
        """Return the result."""
        switch = _switch_on(self._other.model)
        self._given, plain = _plain(self._subject)
        if not plain.gradients:
            raise NotApplicableError("no parameter gets a gradient in train mode")
        found = _Pass()
        try:
            _pass(self._other, self._given, way=_WAY, found=found)
        except ModelRaisedError as error:
            if not found.ran_forward and not switch.endswith("()"):  # it may need more than the attribute
                raise NotApplicableError(f"with {switch} on, {error}") from error
            return results.failed(NAME, results.failure_of_raise(None, error, _ADVICE))
        if plain.outputs.keys() != found.outputs.keys():  # a cache, which checkpointing switches off
            self._only = frozenset(plain.outputs.keys() & found.outputs.keys())
            if not self._only:
                raise NotApplicableError("no output is there both with and without checkpointing")
            plain = _pass(self._subject, self._given, only=self._only)
            found = _pass(self._other, self._given, only=self._only)
        missing = [name for name in plain.gradients if name not in found.gradients]
        if found.calls <= plain.calls and not missing:
            raise NotApplicableError(f"{switch} is on, and the backward pass runs nothing again")
        failure = self._missing(missing) or self._outputs_differ(plain, found) or self._gradients_differ(plain, found)
        fields: dict[str, Any] = {"compared": len(plain.gradients), "unit": "gradients"}
        if failure is not None:
            return results.failed(NAME, failure, **fields)
        return results.passed(NAME, notes=(switch, *_notes(plain, found)), **fields)

    @cached_property
    def _history(self) -> ModelHistory:
        return _recorded(self._subject, self._given)

    def _missing(self, names: list[str]) -> Failure | None:
        if not names:
            return None
        what = f"no gradient reaches {listed([*map(repr, names)])} {_WAY}"
        return results.failure_at(self._history, _last_reader(self._history, names), what, _ADVICE_MISSING)

    def _outputs_differ(self, plain: _Pass, other: _Pass) -> Failure | None:
        for path in differing_outputs(plain.outputs, other.outputs):
            one, two = plain.outputs.get(path), other.outputs.get(path)
            if one is None or two is None:
                continue
            if not self._explained(two, one, lambda run: run.outputs, path):
                what, values = f"{output_name(path)} differs {_WAY}", values_text(one, two)
                return failure_at_place(self._history, self._parting_place(path), what, _ADVICE, values)
        return None

    def _parting_place(self, path: str) -> Place | None:
        """Return where the outputs at a path part; None if that is not known."""
        try:
            return part(self._subject, self._history, _recorded(self._other, self._given), path=path).place
        except OutOfTimeError:
            raise
        except Exception:  # noqa: BLE001 - any call may raise when it is run again
            return None

    def _gradients_differ(self, plain: _Pass, other: _Pass) -> Failure | None:
        wrong = [
            name
            for name, one in plain.gradients.items()
            if not self._explained(other.gradients[name], one, lambda run: run.gradients, name)
        ]
        if not wrong:
            return None
        number = _last_reader(self._history, wrong)
        name = next((name for name in wrong if number is not None and _reads(self._history, number, name)), wrong[-1])
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        what = f"the gradient of {name!r} differs {_WAY}{more}"
        values = values_text(plain.gradients[name], other.gradients[name])
        return results.failure_at(self._history, number, what, _ADVICE, cause=_CAUSE, values=values)

    def _explained(
        self, value: torch.Tensor, reference: torch.Tensor, kind: Callable[[_Pass], Outputs], name: str
    ) -> bool:
        """Return whether two runs differ by rounding: by what moved parameters change of the same value."""
        if torch.equal(value, reference) or is_plainly_explained(value, reference):
            return True
        moves = (kind(self._moved(seed)).get(name) for seed in range(_MOVES))
        return any(move is not None and judge(value, reference, move.double()).within for move in moves)

    def _moved(self, seed: int) -> _Pass:
        return self._subject.once(("moved pass", seed), lambda: _pass(self._subject, self._given, seed, self._only))


def _last_reader(history: ModelHistory, names: list[str]) -> int | None:
    """Return the last call that reads one of these parameters."""
    calls = range(len(history.recording.calls))
    return max((number for number in calls if any(_reads(history, number, name) for name in names)), default=None)


def _reads(history: ModelHistory, number: int, name: str) -> bool:
    source = next((s for s in history.recording.sources if s.kind == "parameter" and s.name == name), None)
    reads = [value_of(read) for _, read in edges_in(history.recording.calls[number])]
    return source is not None and any(value is source.value for value in reads)


def _notes(plain: _Pass, other: _Pass) -> list[str]:
    names = differing_outputs(plain.statistics, other.statistics)
    return [f"running statistics move twice, as parts run again: {listed([*map(repr, names)])}"] if names else []
