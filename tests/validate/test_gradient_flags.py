"""Recorded gradient flags equal the replayed ones, except where code without a recorded call sets them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate import validate
from tests.models import Function
from tests.models import Squared
from tests.models import failures


def made_by_custom_function(x):
    return Squared.apply(x @ nn.Parameter(torch.ones(3, 4)))


def without_gradients(function, *args):
    with torch.no_grad():
        return function(*args)


FORWARDS = {
    "a custom function": lambda x: Squared.apply(x @ nn.Parameter(torch.ones(3, 3))).relu() + 1,
    "views of one without gradients": lambda x: sum(without_gradients(torch.chunk, made_by_custom_function(x), 2)),
    "results of one without gradients": lambda x: without_gradients(torch.mul, made_by_custom_function(x), 2) + 1,
    "parameters made in forward": lambda x: nn.Linear(3, 2)(x * nn.Parameter(torch.ones(3))),
}


@pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)
def test_what_requires_gradients_by_no_call_of_its_own_is_no_failure(forward):
    assert failures(validate(Function(forward), (torch.randn(2, 3),)).verdict) == []


def test_a_result_that_requires_gradients_by_the_record_alone_is_found():
    def partly_without_gradients(x):
        with torch.no_grad():
            y = x * 2
        return y + 1

    recording = record(Function(partly_without_gradients), (torch.ones(2, requires_grad=True),))
    recording.calls[-1].outputs[0].requires_grad = True
    replay, *_ = check_recording(recording, ModelHistory(recording), ["replay"])
    assert [failure.operation for failure in replay.failures] == ["add_1_2"]


def test_a_result_without_gradients_of_a_custom_functions_one_has_its_own_flag():
    def product(x):
        return without_gradients(torch.mul, made_by_custom_function(x).relu(), 2)

    recording = record(Function(product), (torch.ones(2, 3),))
    recording.calls[-1].outputs[0].requires_grad = True
    replay, *_ = check_recording(recording, ModelHistory(recording), ["replay"])
    assert [failure.operation for failure in replay.failures] == [ModelHistory(recording).operations[-2].label]


def tuned(x, weight):
    """Return `x` times a weight after one step of gradient descent."""
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad((x * weight).square().sum(), weight)
    return x * (weight.detach() - 0.1 * gradient)


WEIGHTS = {
    "of a factory": lambda x: nn.Parameter(torch.full((3,), 0.5)),
    "of an activation": lambda x: nn.Parameter(x.mean(0)),
    "of one that requires gradients": lambda x: nn.Parameter((x.mean(0).requires_grad_() * 2).abs()),
    "of a module": lambda x: nn.LayerNorm(3).weight,
    "by a flag": lambda x: torch.full((3,), 0.5).requires_grad_(),
}


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_gradients_with_respect_to_a_parameter_made_in_forward_are_replayed(weight, mode):
    with mode():
        verdict = validate(Function(lambda x: tuned(x, weight(x))), (torch.randn(2, 3),)).verdict
    assert failures(verdict) == []


def test_a_parameter_that_requires_no_gradients_is_detached():
    def forward(x):
        return nn.Parameter(x * 2, requires_grad=False) * 3

    found = validate(Function(forward), (torch.randn(2, 3, requires_grad=True),))
    assert found, found.verdict
    assert [call.outputs[0].requires_grad for call in found.history.recording.calls] == [True, False, False]


class ReadsWeights(nn.Module):
    """Reads views of a weight that requires gradients; `vmap` has its arguments copied, for it might write to them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x):
        rows = self.weight[:2]
        return torch.func.vmap(lambda row: row * 2)(rows) + x @ self.weight.t()


def test_a_view_of_a_weight_requires_gradients_in_inference_mode_too():
    model = ReadsWeights()
    with torch.inference_mode():
        assert model.weight[:2].requires_grad
        verdict = validate(model, (torch.randn(2, 3),)).verdict
    assert failures(verdict) == []


USES = {
    "written": lambda moved, x: moved.exp_(),
    "written beside another": lambda moved, x: torch._foreach_add_([x * 2, moved], 1)[1],
    "an element at a time": lambda moved, x: moved.sin() + x,
    "copied in part": lambda moved, x: torch.cat([moved, x]),
    "of a matrix": lambda moved, x: moved @ x.t(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_tensor_whose_data_is_replaced_in_inference_mode_has_no_views(use):
    def forward(x):
        moved = x * 1
        moved.data = x.detach().view(x.shape)
        return use(moved, x) + 1

    x = torch.randn(2, 3)
    with torch.inference_mode():
        assert failures(validate(Function(forward), (x,)).verdict) == []
