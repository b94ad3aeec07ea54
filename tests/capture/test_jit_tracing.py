"""Forward calls `torch.jit.trace`: what it runs is not recorded, and what it returns is one operation."""

from __future__ import annotations

import functools
import inspect
import itertools

import pytest
import torch
from torch import nn

from pytest_torchlens.capture import record
from pytest_torchlens.capture.guarded import Limits
from pytest_torchlens.capture.guarded import record_guarded
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
]


def plus_one(x):
    return x + 1


def of_a_function(_model, x):
    return torch.jit.trace(plus_one, torch.zeros(2))(x)


def of_a_builtin(_model, x):
    return torch.jit.trace(torch.tanh, x * 2)(x)


def by_keyword(_model, x):
    return torch.jit.trace(plus_one, example_kwarg_inputs={"x": x})(x)


def of_a_module(model, x):
    return torch.jit.trace(model.net, x)(x)


def of_a_module_method(model, x):
    return torch.jit.trace_module(model.net, {"forward": x})(x)


def at_the_first_call(model, x):
    if "traced" not in vars(model):
        vars(model)["traced"] = torch.jit.trace(model.net, x)
    return model.traced(x)


def of_random_code(_model, x):
    return torch.jit.trace(nn.functional.dropout, x, check_trace=False)(x)


class Tracing(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.use = use

    def forward(self, x):
        return self.use(self, x)


USES = {
    of_a_function: ["zeros", "plus_one"],
    of_a_builtin: ["mul", "tanh"],
    by_keyword: ["plus_one"],
    of_a_module: ["sequential"],
    of_a_module_method: ["sequential"],
    at_the_first_call: ["sequential"],
    of_random_code: ["dropout"],
}


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_what_is_traced_is_one_operation(use):
    torch.manual_seed(1)
    result = validate(Tracing(use), (torch.randn(2),), seed=2)
    assert result, result.verdict
    assert [call.info.layer_type for call in result.history.recording.calls] == USES[use]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_in_a_test(use):
    model, x = Tracing(use), torch.randn(2)
    torch.manual_seed(2)
    expected = model(x)
    vars(model).pop("traced", None)
    torch.manual_seed(2)
    guarded = record_guarded(nn.Module.__call__, model, (x,), {}, Limits(100, float("inf")))
    assert torch.equal(guarded.result, expected)
    assert guarded.recording is not None, guarded
    assert not guarded.recording.missed_operations


def test_the_checks_of_tracing_are_pytorchs():
    signs = itertools.cycle([torch.add, torch.sub])

    def differs(x):
        return next(signs)(x, 1)

    with pytest.raises(torch.jit.TracingCheckError):
        validate(Function(lambda x: torch.jit.trace(differs, x)(x)), (torch.zeros(2),))


@pytest.mark.parametrize("value", [lambda x: x * 2, lambda x: x], ids=["a result", "an input"])
def test_a_value_held_as_a_constant_is_unproven(value):
    def forward(x):
        y = value(x)
        return torch.jit.trace(lambda z: z + y, torch.zeros(2))(x.abs())

    (unproven,) = validate(Function(forward), (torch.randn(2),)).verdict.unproven
    assert unproven.operation.startswith("abs_1")
    assert "holds computed tensors as constants" in unproven.message


def test_weights_held_as_constants_are_no_loss():
    def forward(model, x):
        return torch.jit.trace(lambda z: z * model.scale, x)(x)

    model = Tracing(forward)
    model.scale = torch.rand(2)
    assert validate(model, (torch.randn(2),))


def test_a_write_of_tracing_is_recorded():
    def forward(x):
        y = x * 2
        torch.jit.trace(lambda z: z.add_(1) * 1, y, check_trace=False)
        return y + 1

    result = validate(Function(forward), (torch.randn(2),))
    assert [call.info.layer_type for call in result.history.recording.calls] == ["mul", "copy", "add"]
    assert result.verdict.status is not Status.FAILED, result.verdict


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_statistics_that_tracing_updates():
    def forward(model, x):
        first = model.norm(x)
        torch.jit.trace(model.norm, x, check_trace=False)
        return first + model.norm.eval()(x)

    model = Tracing(forward)
    model.norm = nn.BatchNorm1d(2)
    result = validate(model, (torch.randn(3, 2),))
    assert result.verdict.status is not Status.FAILED, result.verdict


def test_a_wrapper_that_is_put_around_ours_while_recording_stays(monkeypatch):
    plain = inspect.unwrap(torch.jit.trace_module)  # PyTorch's compiler may have wrapped ours in an earlier recording
    monkeypatch.setattr(torch.jit, "trace_module", plain)

    def forward(model, x):
        if torch.jit.trace_module is not plain and not hasattr(torch.jit.trace_module, "is_wrapper"):
            torch.jit.trace_module = wrapped(torch.jit.trace_module)
        return of_a_module_method(model, x)

    def wrapped(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        wrapper.is_wrapper = True
        return wrapper

    for _ in range(2):
        (call,) = record(Tracing(forward), (torch.randn(2),)).calls
        assert call.info.layer_type == "sequential"
    assert torch.jit.trace_module.is_wrapper


def test_parameters_and_buffers_of_a_traced_child_are_the_models():
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    model = nn.Sequential(torch.jit.trace(plain, torch.ones(3, 2)), nn.Tanh())
    recording = record(model, (torch.ones(3, 2),))
    assert set(recording.parameters) == {f"0.{name}" for name, _ in plain.named_parameters()}
    read = {source.name for source in recording.sources if source.kind != "input"}
    assert read == {f"0.{name}" for name, _ in [*plain.named_parameters(), *plain.named_buffers()]}
