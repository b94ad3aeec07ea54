"""Makes the results of checks, and the words for places and values in them."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.checks.evidence import RaisedAnotherWay
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import in_doubles
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.source import is_model_code
from pytest_torchlens.history.source import source_place
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.records import Failure
from pytest_torchlens.records import SourcePlace

if TYPE_CHECKING:
    from pytest_torchlens.checks.side_by_side import Fit


def passed(name: str, compared: int, **fields: Any) -> CheckResult:
    """Return that a check compared so many things and found no difference."""
    return CheckResult(name=name, status=CheckStatus.PASSED, compared=compared, **fields)


def failed(name: str, failure: Failure, **fields: Any) -> CheckResult:
    """Return that a check found a difference."""
    return CheckResult(name=name, status=CheckStatus.FAILED, failure=failure, **fields)


def tie(name: str, failure: Failure, **fields: Any) -> CheckResult:
    """Return that the difference comes of a choice on a gap below the explained error."""
    return CheckResult(name=name, status=CheckStatus.TIE, failure=failure, **fields)


def not_applicable(name: str, reason: str, **fields: Any) -> CheckResult:
    """Return that a check does not apply, with the reason."""
    return CheckResult(name=name, status=CheckStatus.NOT_APPLICABLE, reason=reason, **fields)


def failure_at(
    history: ModelHistory | None, number: int | None, message: str, advice: str = "", **fields: Any
) -> Failure:
    """Return a failure at call `number` of a recorded pass; None where the call is not known."""
    if history is None or number is None:
        return Failure(message=message, advice=advice, **fields)
    place = source_place(history.recording.calls[number])
    return replace(_at_line(place, message, advice, **fields), operation=history.label(number))


def _at_line(place: SourcePlace | None, message: str, advice: str, **fields: Any) -> Failure:
    return Failure(message=message, advice=advice, source_line=str(place or ""), source_place=place, **fields)


def failure_of_raise(history: ModelHistory | None, error: ModelRaisedError, advice: str = "") -> Failure:
    """Return the failure of a model that raised when it was run another way."""
    if history is not None and 0 <= error.calls < len(history.recording.calls):
        return failure_at(history, error.calls, str(error), advice)
    return failure_of_error(str(error), error.error, advice)


def failure_of_error(message: str, error: BaseException | None, advice: str = "") -> Failure:
    """Return a failure at the innermost line of the model's code that an error passed through."""
    passed_through = traceback.walk_tb(error.__traceback__ if error else None)
    frames = [(frame.f_code, line) for frame, line in passed_through if is_model_code(frame.f_code)]
    place = SourcePlace(frames[-1][0].co_filename, frames[-1][1], frames[-1][0].co_name) if frames else None
    return _at_line(place, message, advice)


def witness_raise(subject: Subject, error: ModelRaisedError, fit: Fit, alive: object) -> None:
    """Give the witness the call of the plain pass that raised another way, if it was recorded."""
    recording, history = error.recording, subject.history
    if recording is not None and error.calls < len(history.recording.calls):
        number, way = error.calls, error.way
        subject.tools.witness(
            RaisedAnotherWay(history=history, number=number, recording=recording, way=way, fit=fit, alive=alive)
        )


def values_text(one: torch.Tensor, other: torch.Tensor) -> str:
    """Return both values at the element that differs most: ``"[0, 3]: 0.12 and 0.15"``; empty without one."""
    if one.shape != other.shape:
        return f"shapes {tuple(one.shape)} and {tuple(other.shape)}"
    with torch._C.DisableTorchFunction(), torch.no_grad():
        difference = apart(one, other).reshape(-1)
        if not difference.numel() or not bool(difference.any()):
            return ""
        index = int(difference.nan_to_num(nan=torch.inf, posinf=torch.inf).argmax())
        place = [int(at) for at in torch.unravel_index(torch.tensor(index), one.shape)] if one.dim() else []
        return f"{place}: {_text(one, index)} and {_text(other, index)}"


def apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the difference of each element in float64; infinite where only one is a number."""
    is_complex = one.is_complex() or other.is_complex()
    first, second = (in_doubles(tensor + 0j if is_complex else tensor) for tensor in (one, other))
    same = (first == second) | (first.isnan() & second.isnan())
    difference = (first - second).abs().masked_fill(same, 0.0).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return difference.norm(dim=-1) if is_complex else difference


def _text(tensor: torch.Tensor, index: int) -> str:
    return repr(tensor.detach().reshape(-1)[index].item())


def failure_at_line(
    history: ModelHistory, place: SourcePlace | None, message: str, advice: str = "", **fields: Any
) -> Failure:
    """Return a failure at an operation of a recorded pass that a line made; at the line, if it made none.

    It is the one whose value Python reads in that line, else the first.
    """
    recording = history.recording
    read = [escape.value.call for escape in recording.escapes if escape.value and _is_at(source_place(escape), place)]
    made = [number for number, call in enumerate(recording.calls) if _is_at(source_place(call), place)]
    for number in [*(number for number in read if number in made), *made]:
        return failure_at(history, number, message, advice, **fields)
    return _at_line(place, message, advice, **fields)


def _is_at(one: SourcePlace | None, other: SourcePlace | None) -> bool:
    return one is not None and other is not None and (one.file, one.line) == (other.file, other.line)
