"""The check ``gradients``: every trainable parameter gets a finite gradient that is not all zero."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.saving import SaveOptions
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.checks import results
from pytest_torchlens.checks.catalog import split_names
from pytest_torchlens.checks.evidence import BadGradient
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.gradcheck import gradcheck_failure
from pytest_torchlens.checks.gradient_flow import Flow
from pytest_torchlens.checks.gradient_flow import values_of
from pytest_torchlens.checks.held import listed
from pytest_torchlens.checks.inputs import other_inputs
from pytest_torchlens.checks.modes import in_train_mode
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import redraw
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.records import nearest

NAME = "gradients"
_OTHER_INPUTS = 3
"""So many other inputs are tried for a parameter that is not reached: a route may not lead to it."""
_ADVICE = {
    "unread": "remove it, or set requires_grad to False, or name it in 'ignore': DistributedDataParallel stops at it",
    "missing": "let the way from it to the output be differentiable, or set requires_grad to False",
    "not finite": "keep the operation away from where its derivative is infinite: add an epsilon, or replace its input "
    "there (not its result: torch.where passes 0 times infinity on)",
    "zero": "look at the inputs of the operation: it is flat there (a saturated or dead activation, a product with 0)",
}


class BackwardError(Exception):
    """The backward pass raised."""


@dataclass
class _Pass:
    """What one pass and its backward pass gave to the trainable parameters.

    Attributes
    ----------
    states
        By name: ``"fine"``, ``"missing"``, ``"zero"`` or ``"not finite"``.
    without
        Why no output has gradients; empty if one has.
    """

    history: ModelHistory
    states: dict[str, str]
    without: str = ""

    def named(self, state: str) -> list[str]:
        """Return the parameters of a state."""
        return [name for name, own in self.states.items() if own == state]


@dataclass
class _Remarks:
    notes: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    redrawn: bool = False


def run(subject: Subject, gradcheck: bool = False, ignore: str = "") -> CheckResult:
    """Run a backward pass from all outputs, weighted at random, and look at the gradient of each parameter.

    Parameters
    ----------
    subject
        The model and its inputs.
    gradcheck
        Whether to compare the gradients of a float64 copy with differences, too.
    ignore
        Comma-separated patterns of names of parameters that need no gradient.
    """
    remarks = _Remarks()
    trainable = _trainable(subject.model, split_names([ignore]), remarks)
    with torch.inference_mode(mode=False), torch.enable_grad():
        try:
            failure = _failure(subject, trainable, remarks)
            if failure is None and gradcheck:
                failure = gradcheck_failure(subject, trainable, remarks.unseen)
        except BackwardError as error:
            failure = Failure(message=str(error), advice="the model cannot be trained as it is")
    fields: dict[str, Any] = {
        "compared": len(trainable),
        "unit": "parameters",
        "unseen": tuple(remarks.unseen),
        "notes": tuple(remarks.notes),
        "redrawn": remarks.redrawn,
    }
    return results.failed(NAME, failure, **fields) if failure else results.passed(NAME, **fields)


def _trainable(model: nn.Module, ignore: tuple[str, ...], remarks: _Remarks) -> list[str]:
    """Return the names of the trainable parameters."""
    every = [(name, parameter) for name, parameter in named_parameters(model) if not is_lazy(parameter)]
    if not every:
        raise NotApplicableError("the model has no parameters")
    if every[0][1].is_inference():
        raise NotApplicableError("its parameters were made in inference mode, in which no tensor has a gradient")
    names = [name for name, parameter in every if parameter.requires_grad]
    if not names:
        raise NotApplicableError(f"no parameter is trainable: requires_grad is False for all {len(every):,}")
    left_out = [name for name in names if any(fnmatchcase(name, pattern) for pattern in ignore)]
    for pattern in ignore:
        if not any(fnmatchcase(name, pattern) for name in names):
            remarks.notes.append(f"ignore: no trainable parameter is {pattern!r}; {nearest(pattern, names)}")
    if left_out:
        remarks.unseen.append(f"ignored: {listed([*map(repr, left_out)])}")
    if len(left_out) == len(names):
        raise NotApplicableError(f"'ignore' names all {len(names):,} trainable parameters")
    return [name for name in names if name not in left_out]


# -- passes ----------------------------------------------------------------------------------------------------------


def _backward(
    subject: Subject, names: list[str], *, training: bool = False, save: bool = False, seed: int = 0
) -> _Pass:
    """Return one pass with a backward pass; with `seed` on other values of its inputs.

    Raises
    ------
    ModelRaisedError, NotApplicableError
        If the model does not take such inputs, or does not run in that mode.
    BackwardError
        If the backward pass raises.
    """
    options = SaveOptions(detach=True, gradients=True) if save else False
    with subject.recordings(save=options) as run_recorded:
        if training:
            subject.model.train()
            history, why = in_train_mode(subject, run_recorded)
            if history is None:
                raise NotApplicableError(why)
        else:
            history = run_recorded(*(other_inputs(subject, seed) if seed else ()))
        return _Pass(history, *_states(subject.model, names, history))


def _states(model: nn.Module, names: list[str], history: ModelHistory) -> tuple[dict[str, str], str]:
    """Run the backward pass; return the state of each parameter, and why no output has gradients."""
    parameters = dict(named_parameters(model))
    for parameter in parameters.values():
        parameter.grad = None
    outputs = [tensor for _, tensor in walk(history.recording.output)]
    roots = [tensor for tensor in outputs if tensor.requires_grad and not is_discrete(tensor)]
    if roots:
        generator = torch.Generator().manual_seed(0)
        try:
            torch.autograd.backward(roots, [_weights(root, generator) for root in roots])
        except Exception as error:
            raise BackwardError(f"the backward pass raised {type(error).__name__}: {error}") from error
    states = {name: _state(parameters[name].grad) if name in parameters else "missing" for name in names}
    return states, "" if roots else _why_without(history, outputs)


def _weights(root: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the weight of each element of an output: sums would hide a softmax or a norm, whose sum is constant."""
    return torch.randn(root.shape, generator=generator, dtype=torch.float64).to(root)


def _why_without(history: ModelHistory, outputs: list[torch.Tensor]) -> str:
    """Return why a model whose outputs have no gradients is not one to train; empty if it may be."""
    recording = history.recording
    if not outputs:
        return "its output holds no tensor"
    if all(map(is_discrete, outputs)):
        return "its outputs are whole numbers (indices, classes), through which no gradient flows"
    if not any(recording.ambient.rows[call.ambient][0] for call in recording.calls):
        return "its forward runs without gradients as a whole (torch.no_grad or inference_mode): it is for inference"
    return ""


def _state(gradient: torch.Tensor | None) -> str:
    if gradient is None:
        return "missing"
    values = values_of(gradient)
    if not bool(values.isfinite().all()):
        return "not finite"
    return "fine" if bool(values.any()) else "zero"


# -- judgement -------------------------------------------------------------------------------------------------------


def _failure(subject: Subject, trainable: list[str], remarks: _Remarks) -> Failure | None:
    plain, training = _plain_pass(subject, trainable, remarks)
    if plain.without:
        raise NotApplicableError(plain.without)
    if (missing := plain.named("missing")) and not training:
        _try_other_ways(subject, missing, plain, remarks)
    trainable[:] = plain.states
    if not trainable:
        raise NotApplicableError("; ".join(remarks.unseen))
    if all(state == "fine" for state in plain.states.values()):
        return None
    saved = _backward(subject, [*plain.states], training=training, save=True)
    flow = Flow(saved.history)
    if spoilt := plain.named("not finite"):
        return _not_finite(subject, flow, spoilt)
    if missing := plain.named("missing"):
        return _missing(subject, flow, missing, remarks)
    _leave_out_constant(flow, plain, remarks)
    trainable[:] = plain.states
    if not trainable:
        raise NotApplicableError("; ".join(remarks.unseen))
    return _vanished(subject, flow, plain.named("zero"), remarks)


def _plain_pass(subject: Subject, trainable: list[str], remarks: _Remarks) -> tuple[_Pass, bool]:
    """Return a pass in its own mode, or in train mode if its backward pass refuses eval mode; and which it was."""
    try:
        return _backward(subject, trainable), False
    except BackwardError as error:
        try:
            in_train_mode_only = _backward(subject, trainable, training=True)
        except (ModelRaisedError, NotApplicableError) as reason:
            raise NotApplicableError(f"in eval mode {error}; {reason}") from error
        remarks.notes.append(f"looked at in train mode, as in eval mode {error}")
        return in_train_mode_only, True


def _try_other_ways(subject: Subject, missing: list[str], plain: _Pass, remarks: _Remarks) -> None:
    """Look for a gradient of parameters in train mode, and on other inputs; note which get one only so."""
    ways: list[tuple[str, dict[str, Any]]] = [] if subject.is_training else [(_IN_TRAIN_MODE, {"training": True})]
    ways += [("on other inputs", {"seed": seed}) for seed in range(1, _OTHER_INPUTS + 1)]
    for way, options in ways:
        try:
            other = _backward(subject, missing, **options) if missing else None
        except OutOfTimeError:
            raise
        except (ModelRaisedError, NotApplicableError, BackwardError) as error:
            if way == _IN_TRAIN_MODE:
                missing = _leave_out(missing, plain, str(error), remarks)
            continue
        if other is not None and (reached := [*other.named("fine"), *other.named("not finite")]):
            remarks.notes.append(f"only {way} a gradient reaches {listed([*map(repr, reached)])}")
            plain.states.update({name: other.states[name] for name in reached})
            missing = [name for name in missing if name not in reached]


_IN_TRAIN_MODE = "in train mode"


def _leave_out(missing: list[str], plain: _Pass, why: str, remarks: _Remarks) -> list[str]:
    """Leave out parameters of modules that may be called in train mode only, which does not run; return the others."""
    flow = Flow(plain.history)
    unseen = [name for name in missing if _uncalled(flow, name)]
    for name in unseen:
        del plain.states[name]
    if unseen:
        remarks.unseen.append(f"{listed([*map(repr, unseen)])}, as modules are not called in eval mode, and {why}")
    return [name for name in missing if name not in unseen]


def _leave_out_constant(flow: Flow, plain: _Pass, remarks: _Remarks) -> None:
    """Leave out parameters that only lead to a softmax over one element, which is 1 whatever they are."""
    places = {name: flow.vanishing(name) for name in plain.named("zero")}
    unseen = [name for name, at in places.items() if at is not None and flow.is_softmax_of_one(at)]
    for name in unseen:
        del plain.states[name]
    if unseen:
        remarks.unseen.append(
            f"{listed([*map(repr, unseen)])}, which only lead to a softmax over one element (attention to one key): "
            "it is 1 whatever they are; larger inputs would show more"
        )


def _not_finite(subject: Subject, flow: Flow, names: list[str]) -> Failure:
    what = f"the gradient of {listed([*map(repr, names)])} is not finite"
    found = flow.spoiling()
    if found is None:
        return Failure(message=what, advice=_ADVICE["not finite"])
    number, _ = found
    _testify(subject, flow, number, "not finite")
    kind = flow.recording.calls[number].info.layer_type
    cause = f"the gradient that comes to {kind} is finite, and what its backward makes of it is not"
    return results.failure_at(
        flow.history, number, what, _ADVICE["not finite"], cause=cause, values=_values_at(flow, number)
    )


def _testify(subject: Subject, flow: Flow, number: int, state: str) -> None:
    gradients = [flow.gradient(output) for output in flow.recording.calls[number].outputs]
    subject.tools.witness(
        BadGradient(history=flow.history, number=number, state=state, gradients=gradients, alive=subject)
    )


def _values_at(flow: Flow, number: int) -> str:
    """Return the input of an operation where its gradient is not finite."""
    for path, read in edges_in(flow.recording.calls[number]):
        value = value_of(read)
        gradient, tensor = flow.gradient(value), value.tensor
        if gradient is None or tensor is None or tensor.shape != gradient.shape:
            continue
        wrong = (~gradient.isfinite()).reshape(-1).nonzero()
        if len(wrong):
            at = int(wrong[0])
            place = [int(index) for index in torch.unravel_index(wrong[0][0], gradient.shape)]
            one, other = tensor.reshape(-1)[at].item(), gradient.reshape(-1)[at].item()
            return f"argument {path} at {place} is {one!r}, its gradient {other!r}"
    return ""


def _missing(subject: Subject, flow: Flow, names: list[str], remarks: _Remarks) -> Failure:
    """Return the failure of the parameters that no gradient reaches: of the cut that most share; note the others."""
    by_cut = defaultdict(list)
    for name in names:
        by_cut[flow.cut(name)].append(name)
    groups = sorted(by_cut.items(), key=lambda item: (item[0].number is None, -len(item[1])))
    texts = [f"no gradient reaches {listed([*map(repr, group)])}: {cut.why}" for cut, group in groups]
    labels = [f" ({flow.history.label(cut.number)})" if cut.number is not None else "" for cut, _ in groups]
    remarks.notes += [text + label for text, label in zip(texts[1:], labels[1:], strict=True)]
    cut, group = groups[0]
    if cut.number is not None and flow.is_read(group[0]):
        _testify(subject, flow, cut.number, "missing")
    advice = _ADVICE["missing" if flow.is_read(group[0]) else "unread"]
    return results.failure_at(flow.history, cut.number, texts[0] + _uncalled(flow, group[0]), advice)


def _uncalled(flow: Flow, name: str) -> str:
    """Return which module was not called, if that is why nothing reads a parameter."""
    if flow.is_read(name):
        return ""
    called = {call.address for call in flow.recording.module_calls}
    around = list(_addresses(name))
    outermost = next((address for address in around if address in flow.recording.modules and address not in called), "")
    inside = bool(outermost) and not any(address.startswith(f"{outermost}.") for address in called)
    return f"; module {outermost!r} is not called" if inside else ""


def _addresses(name: str) -> Iterator[str]:
    """Yield the addresses of the modules around a parameter, the outermost first."""
    parts = name.split(".")[:-1]
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _vanished(subject: Subject, flow: Flow, names: list[str], remarks: _Remarks) -> Failure | None:
    """Return the failure of parameters whose gradient is zero; none if chance or zeros among the weights make it so."""
    places = {name: flow.vanishing(name) for name in names}
    excusable = [
        name
        for name, at in places.items()
        if at is not None and (flow.has_zero_operand(at) or flow.has_few_outputs(at))
    ]
    excused = _fine_with_other_weights(subject, excusable)
    if excused:
        remarks.redrawn = True
        remarks.notes.append(
            f"the gradient of {listed([*map(repr, excused)])} is zero with these weights, as a factor is all zero or "
            "the few elements of an activation are all off, and not with weights drawn anew"
        )
    left = [name for name in names if name not in excused]
    if not left:
        return None
    at = places[left[0]]
    if at is not None:
        _testify(subject, flow, at, "zero")
    what = f"the gradient of {listed([*map(repr, left)])} is all zero"
    kind = flow.recording.calls[at].info.layer_type if at is not None else ""
    cause = f"{kind} gets a gradient and passes on only zeros" if kind else ""
    return results.failure_at(flow.history, at, what, _ADVICE["zero"], cause=cause)


def _fine_with_other_weights(subject: Subject, names: list[str]) -> list[str]:
    if not names:
        return []
    try:
        model = copy.deepcopy(subject.model)
    except Exception:  # noqa: BLE001 - users' code
        return []
    redraw(model)
    other = _backward(subject.of(model), names)
    return other.named("fine")
