"""Perturbation: what it finds, and which reasons excuse an edge."""

from __future__ import annotations

import pytest
import torch

from pytest_torchlens.validate import validate
from tests.models import Function
from tests.models import failures


def test_perturbation_sees_a_parent_that_is_not_read():
    def forward(x, y):
        return torch.add(x, y, alpha=0)

    verdict = validate(Function(forward), (torch.rand(3), torch.rand(3))).verdict
    (failure,) = verdict.part("perturbation").failures
    assert failure.operation == "add_1_2"
    assert failure.message == "other values for argument 1 of add leave its result unchanged"


EXEMPT = {
    "empty output": lambda x: x[:0] * x.sum(),
    "shape only": lambda x: x + torch.zeros_like(x),
    "overwritten": lambda x: torch.ones(3).copy_(x),
    "multiplied by zero": lambda x: x @ torch.zeros(3, 3),
    "not selected": lambda x: torch.where(torch.ones(3, dtype=torch.bool), x, x * 2),
    "discrete result unchanged": lambda x: (x < 1e9).to(x.dtype) * x,
    "single element": lambda x: x[:, None].softmax(-1) + x[:, None],
}


@pytest.mark.parametrize("named", EXEMPT)
def test_each_exemption_is_named_and_counted(named):
    verdict = validate(Function(EXEMPT[named]), (torch.rand(3) + 0.5,)).verdict
    assert failures(verdict) == []
    assert verdict.part("perturbation").exempt.get(named, 0) >= 1


HIDDEN = {
    "equal rows": lambda x: torch.stack([x, x]).index_select(0, torch.tensor([1, 0, 1])),
    "equal rows by index": lambda x: x.expand(2, 3)[torch.tensor([1, 0])],
    "equal elements by mask": lambda x: torch.tensor([1.0, 1, 2, 2])[torch.tensor([True, False, True, False])] * x[1:],
}


@pytest.mark.parametrize("forward", HIDDEN.values(), ids=HIDDEN)
def test_an_index_among_equals_is_excused_by_name(forward):
    verdict = validate(Function(forward), (torch.arange(3.0),)).verdict
    assert verdict.part("perturbation").exempt["hidden by the values of the other arguments"] >= 1
    assert verdict


def test_an_argument_that_no_value_of_the_others_brings_to_light_is_not_hidden():
    ignore = torch.library.custom_op(
        "lens_test::ignores", lambda x, y: x * 2, mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor"
    )
    verdict = validate(Function(lambda x: ignore(x, x + 1)), (torch.arange(3.0),)).verdict
    (failure,) = verdict.part("perturbation").failures
    assert failure.message == "other values for argument 1 of ignores leave its result unchanged"
