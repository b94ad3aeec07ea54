"""The recorder's own operations on a custom autograd function are not recorded as the model's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_torchlens.capture import record
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function


class ScalesTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.new(x)


def test_a_result_that_is_not_contiguous_is_looked_at_in_silence():
    found = validate(
        Function(lambda x: ScalesTheGradient.apply((x * 2).transpose(0, 1)).float() + 1), (torch.ones(3, 2),)
    )
    assert found, found.verdict
    assert "new" in [operation.layer_type for operation in found.history.record().operations]


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 2))

    def forward(self, x):
        return ScalesTheGradient.apply((x * self.weight).transpose(0, 1)).float().pow(2)


def test_a_result_that_is_an_alias_is_replayed_with_gradients():
    found = validate(Scaled(), (torch.ones(3, 2),))
    assert found, found.verdict


@pytest.mark.parametrize("given", [lambda x: x.new(x), lambda x: x.new([1.0, 2.0])], ids=["tensor", "list"])
def test_new_with_contents_is_no_uninitialised_memory(given):
    replay = validate(Function(lambda x: given(x * 2) + 1), (torch.ones(3, 2),)).verdict.part("replay")
    assert replay.status is Status.PASSED
    assert not replay.exempt


def test_new_with_a_shape_is():
    given = Function(lambda x: x.new(3, 2).fill_(1) + x + x.new_empty([3, 2]).zero_())
    replay = validate(given, (torch.ones(3, 2),)).verdict.part("replay")
    assert replay.exempt == {"uninitialised memory": 2}


class SineInNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.sin(x.detach().numpy()))


def test_saving_adds_no_operations_of_our_own_to_a_custom_function_over_an_array():
    model = Function(lambda x: SineInNumpy.apply(x) + 1)
    plain, saving = (record(model, (torch.ones(3),), keep=keep) for keep in ("none", "all"))
    assert [call.info.name for call in saving.calls] == [call.info.name for call in plain.calls]
