"""A loop that ends with the recorded values may never end with others: validation must."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function


@torch.jit.script
def settled(x, w):
    while bool(x.norm() > 0.1):
        x = torch.mm(x, w)
    return x


class Settles(nn.Module):
    def __init__(self, loop, weight):
        super().__init__()
        self.loop = loop
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return self.loop(x, self.weight)


def until_small(x, w):
    return while_loop(lambda y: y.norm() > 0.5, lambda y: ((y @ w).tanh() * 0.5,), (x,))[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(("loop", "weight"), [(settled, torch.eye(3) / 2), (until_small, torch.eye(3))])
def test_other_values_end_a_loop_inside_an_operation(loop, weight, gradients):
    x = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])
    with torch.set_grad_enabled(gradients):
        verdict = validate(Settles(loop, weight), (x,)).verdict
    assert verdict.status is Status.PASSED, verdict.words


def halved(x):
    while x != 1:
        x = x / 2
    return x * 3


def halved_whatever_it_raises(x):
    y = x * 1
    while True:
        try:
            if y.item() == 1:
                return y
        except Exception:  # noqa: S110, BLE001 - as users write
            pass
        y = y / 2


@pytest.mark.parametrize("forward", [halved, halved_whatever_it_raises])
def test_slightly_other_inputs_end_a_loop_in_python(forward):
    assert validate(Function(forward), (torch.tensor([4.0]),)).verdict.status is Status.PASSED
