"""The check ``outputs``: a model gives the same however its inputs are given and its outputs are asked for.

As a tuple and as a dict, from ids and from their embeddings, with hidden states and attentions and without, as a whole
and by its features and its head.  Values and their order must agree, but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from typing import NamedTuple

import torch
from torch import nn

from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.checks import results
from pytest_torchlens.checks.catalog import WAYS_OF_OUTPUTS
from pytest_torchlens.checks.catalog import split_names
from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.compare import compare_outputs
from pytest_torchlens.checks.compare import passed_all
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.inputs import arguments_by_name
from pytest_torchlens.checks.inputs import parameters_of
from pytest_torchlens.checks.places import pairs_of
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

NAME = "outputs"
_ADVICE = {
    "return_dict": "build both from the same values, in the order of the dict's fields",
    "inputs_embeds": "let both ways be one after the embeddings: no scale, position or mask may depend on the ids",
    "hidden_states": "an output that is asked for must change no other: keep copies, and write to nothing that is kept",
    "attentions": "let the attention that returns its weights compute the same: scale, mask, dropout and dtype",
    "features": "forward is forward_head(forward_features(x)): let no norm or pooling stand in one of them only",
}


class _Run(NamedTuple):
    """Another way to call the model: who runs, on what, and how that is said."""

    subject: Subject
    runner: Subject
    way: str


def run(subject: Subject, ways: str = ",".join(WAYS_OF_OUTPUTS)) -> CheckResult:
    """Compare each way to call the model with a plain call.

    Parameters
    ----------
    subject
        The model and its inputs.
    ways
        Some of ``return_dict``, ``inputs_embeds``, ``hidden_states``, ``attentions`` and ``features``.
    """
    subject = dependent(subject)
    found: list[CheckResult] = []
    notes: list[str] = []
    unseen: list[str] = []
    for name in split_names([ways]):
        made = _other_call(subject, name)
        if made is None:
            continue
        try:
            result = _result(name, made)
        except NotApplicableError as reason:
            unseen.append(f"{made.way}: {reason}")
            continue
        if result.status is not CheckStatus.PASSED:
            return result
        found.append(result)
        notes.append(made.way)
    if not found:
        raise NotApplicableError("; ".join(unseen) or f"forward has none of these ways: {ways}")
    passed = passed_all(NAME, found, notes)
    return replace(passed, unseen=(*passed.unseen, *unseen), redrawn=subject.redrawn)


# -- ways ------------------------------------------------------------------------------------------------------------


def _other_call(subject: Subject, name: str) -> _Run | None:
    """Return the call of one way; None if forward does not take it."""
    if name == "features":
        return _by_parts(subject)
    try:
        given = arguments_by_name(subject)
    except NotApplicableError:
        return None
    option = name if name in ("return_dict", "inputs_embeds") else f"output_{name}"
    if not _takes(subject.model, option):
        return None
    if name == "inputs_embeds":
        return _by_embeddings(subject, given)
    value = not (name == "return_dict" and given.get(option) is not False)
    return _Run(subject, subject.with_inputs((), {**given, option: value}), f"with {option}={value}")


def _takes(model: nn.Module, option: str) -> bool:
    """Return whether forward takes an option: it names it, or takes any and the configuration knows it."""
    parameters = parameters_of(model)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return option in parameters or (takes_any and hasattr(getattr(model, "config", None), option))


def _by_embeddings(subject: Subject, given: dict[str, Any]) -> _Run | None:
    """Return the call on embeddings in the place of ids; of ids without padding, which is known from ids only."""
    model: Any = subject.model
    ids = given.pop("input_ids", None)
    if not isinstance(ids, torch.Tensor) or not is_discrete(ids) or not hasattr(model, "get_input_embeddings"):
        return None
    ids = _without(ids, getattr(getattr(model, "config", None), "pad_token_id", None))
    reference = subject.with_inputs((), {**given, "input_ids": ids})
    try:
        with torch.no_grad():
            embedded = model.get_input_embeddings()(ids)
    except Exception:  # noqa: BLE001 - it may not be an embedding of ids
        return None
    return _Run(reference, subject.with_inputs((), {**given, "inputs_embeds": embedded}), "with inputs_embeds")


def _without(ids: torch.Tensor, padding: object) -> torch.Tensor:
    if not isinstance(padding, int) or not bool((ids == padding).any()):
        return ids
    others = ids[ids != padding]
    return ids.masked_fill(ids == padding, int(others[0]) if others.numel() else max(0, padding - 1))


class _Parts(nn.Module):
    """A model as its features and its head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the head makes of the features."""
        return self.model.forward_head(self.model.forward_features(*args, **kwargs))


def _by_parts(subject: Subject) -> _Run | None:
    if not (hasattr(subject.model, "forward_features") and hasattr(subject.model, "forward_head")):
        return None
    return _Run(subject, subject.around(_Parts(subject.model)), "by forward_features and forward_head")


# -- comparison ------------------------------------------------------------------------------------------------------


def _result(name: str, made: _Run) -> CheckResult:
    subject, runner, way = made
    reference = subject.outputs
    classes: list[type] = []

    def function(*args: Any, **kwargs: Any) -> Any:
        output = runner.model(*args, **kwargs)
        classes.append(type(output))
        return output

    try:
        with runner.runs(way=way, function=function) as call:
            outputs = call()
    except ModelRaisedError as error:
        if name == "return_dict" or not isinstance(error.error, TypeError | ValueError | NotImplementedError):
            return results.failed(NAME, results.failure_of_raise(None, error, _ADVICE[name]), redrawn=subject.redrawn)
        raise NotApplicableError(str(error)) from error
    if name == "return_dict":
        if (what := _wrong_form(runner, classes[0], reference, outputs)) is not None:
            failure = results.failure_at(subject.history, _maker(subject.history, None), what, _ADVICE[name])
            return results.failed(NAME, failure, redrawn=subject.redrawn)
        outputs = dict(zip(reference, outputs.values(), strict=True))
    _require_more(name, way, reference, outputs)
    histories: list[ModelHistory] = []

    def record() -> ModelHistory:
        histories.append(runner.record(way=way))
        return histories[0]

    result = compare(NAME, subject, outputs, record, way, _ADVICE[name])
    if result.status is not CheckStatus.FAILED or result.failure is None or not histories:
        return result
    worst = compare_outputs(subject, outputs).worst
    failure = _placed(subject.history, histories[0], result.failure, worst[0] if worst else None)
    return replace(result, failure=failure)


def _wrong_form(runner: Subject, kind: type, reference: Outputs, outputs: Outputs) -> str | None:
    """Return what is wrong with the form of an output; None if nothing is."""
    wanted = runner.kwargs["return_dict"]
    if issubclass(kind, tuple) is wanted or (not wanted and issubclass(kind, Mapping)):
        return f"return_dict={wanted} returns {kind.__name__}"
    if len(reference) != len(outputs):
        return f"with return_dict={wanted} the output holds {len(outputs)} tensors, and {len(reference)} without"
    for number, (path, one, other) in enumerate(zip(reference, reference.values(), outputs.values(), strict=True)):
        if one.shape != other.shape:
            shapes = f"has shape {tuple(other.shape)}, and {output_name(path)} has {tuple(one.shape)}"
            return f"with return_dict={wanted} tensor {number} of the output {shapes}"
    return None


def _require_more(name: str, way: str, reference: Outputs, outputs: Outputs) -> None:
    """Raise if what was asked for is not there, so that nothing was asked for."""
    if name in ("hidden_states", "attentions") and not set(outputs) - set(reference):
        raise NotApplicableError("the output holds nothing more then")


def _placed(one: ModelHistory, other: ModelHistory, failure: Failure, path: str | None) -> Failure:
    """Return the failure at an operation that only the plain call has, if the first that differs reads its result.

    Without an operation that differs it is the one that makes the output at `path`.
    """
    calls = one.recording.calls
    number = next((at for at in range(len(calls)) if one.label(at) == failure.operation), None)
    if number is None:
        number, cause = _maker(one, path), "it makes the output; no operation that both calls have differs"
    else:
        only = {pair.one for pair in pairs_of(one, other) if pair.other is None}
        read = [value_of(read).call for _, read in edges_in(calls[number]) if value_of(read).call in only]
        if not read:
            return failure
        number, cause = read[0], "only the plain call has it"
    return results.failure_at(one, number, failure.message, failure.advice, values=failure.values, cause=cause)


def _maker(history: ModelHistory, path: str | None) -> int | None:
    """Return the call that makes an output: the one at `path`, or the first."""
    reads = [read for at, read in history.recording.outputs if path in (None, at)]
    number = value_of(reads[0]).call if reads else -1
    return number if number >= 0 else None
