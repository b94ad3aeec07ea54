"""Conditions of every shape are found: a name, a call, `not`, `or`; wrong keys give an error that is a sentence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.history.lookup import LookupKeyError
from tests.models import Function


def by_call(x):
    if x.isnan().any():
        return x
    return x + 1


def by_name(x):
    positive = x.sum() > 0
    if positive:
        return x * 2
    return x


def conditional_expression(x):
    return x + 1 if x.isfinite().all() else x


def asserted(x):
    assert x.isfinite().all()
    return x + 1


def filtered(x):
    return [row + 1 for row in x if row.any()]


def repeated(x):
    while x.any():
        x = x - 1
    return x


def one_of_two(x):
    first, second = x.sum() > 0, x.sum() > 9
    if first or second:
        return x * 3
    return x


def negated(x):
    large = x.sum() > 9
    if not large:
        return x * 4
    return x


CONDITIONS = {
    by_call: [("if", "x.isnan().any()", "else")],
    by_name: [("if", "positive", "body")],
    conditional_expression: [("conditional expression", "x.isfinite().all()", "body")],
    asserted: [("assert", "x.isfinite().all()", "holds")],
    filtered: [("comprehension filter", "row.any()", "keeps")] * 2,
    repeated: [("while", "x.any()", "goes on"), ("while", "x.any()", "ends")],
    one_of_two: [("if", "first or second", "body")],
    negated: [("if", "not large", "body")],
}


@pytest.mark.parametrize(("forward", "expected"), CONDITIONS.items(), ids=lambda it: getattr(it, "__name__", ""))
def test_conditions(forward, expected):
    history = tl.log_forward_pass(Function(forward), torch.ones(2, 3))
    assert [(test.statement, test.condition, test.branch) for test in history.truth_tests] == expected


class EitherModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)

    def forward(self, x):
        return self.first(x) if x.sum() > 0 else self.second(x)


def test_passes_through_different_modules_can_be_merged():
    model = EitherModule()
    one = tl.log_forward_pass(model, torch.ones(1, 2))
    merged = one.merge(tl.log_forward_pass(model, -torch.ones(1, 2)))
    assert (merged.only_first, merged.only_second) == (("linear_1_3",), ("linear_1_3",))


@pytest.mark.parametrize("key", [None, 1.5, slice(2)], ids=["none", "float", "slice"])
def test_a_key_of_another_kind_is_a_clear_error(key, tmp_path):
    history = tl.log_forward_pass(nn.Linear(2, 2), torch.ones(1, 2))
    history.save(tmp_path / "saved")
    for asked in (history, tl.load(tmp_path / "saved")):
        with pytest.raises(LookupKeyError, match="expected a layer label"):
            asked[key]
