"""Passes of one model can be merged, whatever branches they took; other passes cannot."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl


def passed(*modules, size=2):
    return tl.log_forward_pass(nn.Sequential(*modules), torch.ones(1, size))


class Scaled(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(shape))

    def forward(self, x):
        return self.scale.sum() * x


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([nn.Linear(2, 3)], [nn.Linear(2, 5)], r"with \(3, 2\) and \(5, 2\) at '0.weight'"),
        ([nn.ReLU()], [nn.Tanh()], "ReLU of 0 parameters and Tanh of 0 parameters at '0'"),
        ([Scaled(2, 3)], [Scaled(3, 2)], r"with \(2, 3\) and \(3, 2\) at '0.scale'"),
        ([nn.ReLU()], [nn.ReLU(), nn.ReLU()], "Sequential and Sequential"),
    ],
)
def test_passes_of_different_models(first, second, message):
    with pytest.raises(ValueError, match=f"expected two passes of one model, got .*{message}"):
        passed(*first).merge(passed(*second))


def test_passes_of_one_model():
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    first = tl.log_forward_pass(model, torch.ones(1, 2))
    model.requires_grad_(False)
    again = tl.log_forward_pass(model, torch.ones(4, 2))
    merged = first.merge(again)
    assert merged.only_second == ()
    assert [op.operation.layer_type for op in merged.operations if op.in_both] == ["input", "linear", "relu", "output"]


class Chosen(nn.Module):
    """Calls one of two modules on one line; their addresses have a colon."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"a:b": nn.ReLU(), "a:c": nn.ReLU()})

    def forward(self, x):
        return self.inner["a:b" if x.sum() > 0 else "a:c"](x)


def test_modules_whose_addresses_differ_after_a_colon():
    model = Chosen()
    first, second = (tl.log_forward_pass(model, torch.full((2,), sign)) for sign in (1.0, -1.0))
    merged = first.merge(second)
    assert merged.only_first == merged.only_second == ("relu_1_3",)
