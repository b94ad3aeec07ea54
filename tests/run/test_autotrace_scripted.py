"""Models with a part that no mode can look into: recorded around it, and the verdict says what it leaves open."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.records import Status
from tests.run.traced import X
from tests.run.traced import assert_equal
from tests.run.traced import traced

pytestmark = [pytest.mark.filterwarnings(f"ignore::{warning}") for warning in ("DeprecationWarning", "FutureWarning")]


class Around(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.child = child
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.child(self.linear(x)) * 2


def inner(activation=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), activation())


def scripted(model):
    return torch.jit.script(model)


def jit_traced(model):
    return torch.jit.trace(model, X, check_trace=False)


def frozen(model):
    return torch.jit.freeze(torch.jit.script(model.eval()))


def exported(model):
    return torch.export.export(model, (X,)).module()


def compiled(model):
    return torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize("make", [scripted, jit_traced, frozen])
def test_a_scripted_child_is_one_operation_that_is_not_replayed(make):
    model = Around(make(inner()))
    plain = model(X)
    result, found = traced(lambda: model(X))
    assert_equal(result, plain)
    assert found.skip_reasons == {}
    (call,) = found.results
    assert (call.operations, call.trouble, call.verdict.status) == (3, "", Status.UNPROVEN)
    assert call.verdict.part("replay").reason == "Sequential runs code of its own that would run again"
    assert call.verdict.part("invariants").status is Status.PASSED
    assert call.verdict.part("completeness").status is Status.PASSED
    assert call.verdict.part("completeness").unchecked == ("what Sequential computed inside",)
    assert call.verdict.part("completeness").notes == ("not checked: what Sequential computed inside",)


def test_an_exported_child_is_looked_into():
    model = Around(exported(inner()))
    plain = model(X)
    result, found = traced(lambda: model(X))
    assert_equal(result, plain)
    assert [(call.operations, call.verdict.status) for call in found.results] == [(4, Status.PASSED)]


@pytest.mark.parametrize("make", [compiled, compiled_in_place])
def test_a_model_with_a_compiled_child_is_left_alone(make):
    torch.compiler.reset()
    model = Around(make(inner()))
    plain = model(X)
    result, found = traced(lambda: model(X))
    assert_equal(result, plain)
    assert (found.skip_reasons, found.results) == ({"a module of it is compiled": 1}, ())


@pytest.mark.parametrize("make", [scripted, jit_traced, frozen, compiled, compiled_in_place])
def test_a_model_that_is_scripted_or_compiled_as_a_whole_is_left_alone(make):
    torch.compiler.reset()
    model = make(inner())
    plain = model(X)
    result, found = traced(lambda: model(X))
    assert_equal(result, plain)
    assert (found.skip_reasons, found.results) == ({"it is compiled or scripted": 1}, ())


def test_children_of_other_code_are_not_alike():
    models = [Around(scripted(inner(activation))) for activation in (nn.ReLU, nn.Tanh)]
    _, found = traced(lambda: [model(X) for model in models * 2])
    assert (found.known, [call.operations for call in found.results]) == (2, [3, 3])


def test_a_scripted_child_trains_as_it_does():
    def train():
        torch.manual_seed(1)
        model = Around(scripted(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))))
        out = model(X)
        out.sum().backward()
        return out, [p.grad for p in model.parameters()], list(model.buffers()), torch.rand(2)

    plain = train()
    result, found = traced(train)
    assert_equal(result, plain)
    assert found.results[0].verdict.status is Status.UNPROVEN
    assert found.results[0].verdict.part("invariants").status is Status.PASSED
