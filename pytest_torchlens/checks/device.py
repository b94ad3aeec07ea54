"""The check ``device``: the CPU and the GPU that there is give the same, but for rounding.

A copy of the model runs on the other device.  Float32 must be float32 there: TF32, which has the digits of float16, is
off while it runs, unless ``tf32`` asks for the settings as they are.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import _C

from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.checks import results
from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.compare import raised_when_recorded
from pytest_torchlens.checks.inputs import inputs_of
from pytest_torchlens.checks.inputs import with_inputs
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import WrongOptionError
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import close

NAME = "device"
_ADVICE = (
    "an operation that gives another result there, beyond rounding, is a kernel's fault, or reads memory that nothing "
    "wrote: replace it, or report it to PyTorch; code that asks for the device must compute the same"
)
_ADVICE_RAISES = (
    "make tensors where their partners are: torch.zeros(..., device=x.device), register_buffer for constants"
)

_CUDNN = ("conv", "rnn")
"""Operations of cuDNN with a precision of their own."""


def run(subject: Subject, to: str = "", tf32: bool = False) -> CheckResult:
    """Compare the outputs on another device with those of the plain run.

    Parameters
    ----------
    subject
        The model and its inputs.
    to
        The device; the first GPU by default, and the CPU for a model that is on a GPU.
    tf32
        Whether to leave on what PyTorch's settings say of TF32.
    """
    device = _device(_home(subject), to)
    subject = dependent(subject)
    if subject.draws:
        raise NotApplicableError(f"the model draws random numbers ({subject.draws}), and others on another device")
    runner = _on(subject, device)
    way = f"on {device}"
    with contextlib.nullcontext() if tf32 else _without_tf32(subject):
        try:
            outputs = runner.call(way=way)
        except ModelRaisedError as error:
            return _raised(subject, runner, error, device)
        result = compare(NAME, subject, outputs, partial(_record, runner, way), way, _ADVICE)
    digits = "with TF32 as it is set" if tf32 else "without TF32"
    return replace(result, notes=(f"{way}, {digits}",)) if result.failure is None else result


def _record(runner: Subject, way: str) -> ModelHistory:
    return runner.record(way=way)


def _raised(subject: Subject, runner: Subject, error: ModelRaisedError, device: torch.device) -> CheckResult:
    """Return the failure of a model that raised there; not applicable where a kernel is missing."""
    if isinstance(error.error, NotImplementedError):
        raise NotApplicableError(f"{device} lacks an operation: {error.error}") from error
    failure = results.failure_of_raise(subject.history, raised_when_recorded(runner, error), _ADVICE_RAISES)
    return results.failed(NAME, failure, redrawn=subject.redrawn)


def _home(subject: Subject) -> torch.device:
    """Return the device of a model.

    Raises
    ------
    NotApplicableError
        If it is on several.
    """
    tensors = [tensor for _, tensor in (*named_parameters(subject.model), *named_buffers(subject.model))]
    devices = {tensor.device for tensor in (*tensors, *inputs_of(subject).values())}
    if len(devices) > 1:
        raise NotApplicableError(f"the model and its inputs are on several devices: {', '.join(map(str, devices))}")
    return next(iter(devices), torch.device("cpu"))


def _device(home: torch.device, name: str) -> torch.device:
    """Return the device to compare with.

    Raises
    ------
    NotApplicableError
        If PyTorch sees none here, or not that one.
    WrongOptionError
        If PyTorch knows no such device.
    """
    found = available()
    try:
        wanted = torch.device(name) if name else None
    except RuntimeError as error:
        hint = close(name, ["cpu", "cuda", "mps", "xpu"])
        raise WrongOptionError(
            f"to: expected a device of PyTorch such as cuda or cuda:1, got {name!r}{hint and f' ({hint})'}"
        ) from error
    if wanted is not None:
        if wanted.type not in (*found, "cpu") or _is_same(wanted, home):
            raise NotApplicableError(
                f"PyTorch sees no other device {name!r} here; it sees {', '.join(found) or 'none'}"
            )
        return wanted
    if home.type != "cpu":
        return torch.device("cpu")
    if not found:
        raise NotApplicableError("this machine has no GPU that PyTorch sees (cuda, mps or xpu)")
    return torch.device(found[0])


def _is_same(one: torch.device, other: torch.device) -> bool:
    """Return whether two names are of one device: ``cuda`` is the present one, and all CPUs are one."""
    return one.type == other.type and (one.type == "cpu" or _number(one) == _number(other))


def _number(device: torch.device) -> int:
    if ":" in str(device):
        return device.index
    present = getattr(torch.get_device_module(device.type), "current_device", int)  # mps has but one
    return int(present())


def available() -> list[str]:
    """Return the types of GPU that PyTorch can use here."""
    backends = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
    return [name for name, backend in backends.items() if backend.is_available()]


def _on(subject: Subject, device: torch.device) -> Subject:
    """Return a subject of a copy of the model, and of its inputs, on another device."""
    try:
        model = copy.deepcopy(subject.model).to(device)
        given = with_inputs(subject, lambda tensor: tensor.detach().to(device))
    except torch.OutOfMemoryError as error:
        raise NotApplicableError(f"the model does not fit on {device}") from error
    except (RuntimeError, TypeError) as error:
        raise NotApplicableError(f"the model cannot be copied to {device}: {type(error).__name__}: {error}") from error
    return subject.of(model).with_inputs(*given)


@contextlib.contextmanager
def _without_tf32(subject: Subject) -> Iterator[None]:
    """Switch TF32 off, by PyTorch's former settings and by its new ones, and put back what was set.

    The attributes of ``torch.backends`` raise once ``torch.testing._internal`` was imported, as PyTorch's own tests
    do; the functions beneath them do not.
    """
    with subject.tools.preserved():
        torch.set_float32_matmul_precision("highest")
        _C._set_cudnn_allow_tf32(False)
        if hasattr(_C, "_set_fp32_precision_setter"):  # since PyTorch 2.9
            for operation in ("matmul", *_CUDNN):
                _C._set_fp32_precision_setter("cuda", operation, "ieee")
        yield
