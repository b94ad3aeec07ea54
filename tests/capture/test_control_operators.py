"""`torch.cond` and its kin, with gradients on and off: one operation that names its steps, or the steps themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import pytest_torchlens as tl
from pytest_torchlens.capture import record
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate

X = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])


class Branches(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.fc = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.body(self, x)


def chosen(model, x):
    return torch.cond(x.sum() > 0, lambda x: model.fc(x).sin(), lambda x: model.fc(x) * 2, (x,))


BODIES = {
    "cond": chosen,
    "cond, the other branch": lambda model, x: chosen(model, -x),
    "cond of a computed value": lambda model, x: torch.cond(
        model.fc(x).sum() > 1e3, lambda v: v.sin(), lambda v: v.cos(), (model.fc(x),)
    ),
    "cond in a cond": lambda model, x: torch.cond(
        x.sum() > 0,
        lambda x: torch.cond(x[0, 0] > 0, lambda x: model.fc(x) + 1, lambda x: x * 3, (x,)),
        lambda x: x * 2,
        (x,),
    ),
    "scan": lambda model, x: scan(lambda c, a: (c + a, c * a), torch.zeros(3), model.fc(x), dim=0),
    "map": lambda model, x: map_over(lambda row: model.fc(row).tanh(), x),
}
WITHOUT_GRADIENTS = {
    "while_loop": lambda model, x: while_loop(
        lambda i, v: i < 3, lambda i, v: (i + 1, v * 2 + 1), (torch.tensor(0), model.fc(x))
    )[1],
    "associative_scan": lambda model, x: associative_scan(
        lambda a, b: a + b, model.fc(x), dim=0, combine_mode="generic"
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*sorted(set(BODIES) - {"scan"}), pytest.param("scan", marks=pytest.mark.slow)])
@pytest.mark.parametrize("gradients", [True, False])
def test_it_is_validated(name, gradients):
    with torch.set_grad_enabled(gradients):
        assert validate(Branches(BODIES[name]), (X,)).verdict.status is Status.PASSED


def test_an_operand_that_needs_gradients_may_rule_out_the_watch():
    verdict = validate(Branches(lambda model, x: chosen(model, model.norm(x))), (X,)).verdict
    assert [part.name for part in verdict.parts if part.status is not Status.PASSED] in ([], ["completeness"])
    assert verdict.status is not Status.FAILED


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
@pytest.mark.parametrize("gradients", [True, False])
def test_loops_are_validated(name, gradients):
    with torch.set_grad_enabled(gradients):
        assert validate(Branches(WITHOUT_GRADIENTS[name]), (X,)).verdict.status is Status.PASSED


@pytest.mark.parametrize(("sign", "steps"), [(1, ("linear", "sin")), (-1, ("linear", "mul"))])
def test_the_operation_names_the_steps_of_its_branch(sign, steps):
    calls = record(Branches(chosen), (X * sign,)).calls
    assert [call.info.layer_type for call in calls] == ["sum", "gt", "cond"]
    assert calls[-1].info.steps == steps


def test_a_traced_cond_is_the_plain_one_and_has_its_gradients():
    torch.manual_seed(0)
    model = Branches(chosen)
    plain = model(X)
    (wanted,) = torch.autograd.grad(plain.sum(), model.fc.weight)
    traced = record(model, (X,)).output
    assert torch.equal(plain, traced)
    assert torch.equal(torch.autograd.grad(traced.sum(), model.fc.weight)[0], wanted)


def test_its_parameters_are_its_parents():
    history = tl.log_forward_pass(Branches(chosen), X)
    assert history["cond_1"].num_params_total == 12


@pytest.mark.parametrize("name", ["cond", "cond of a computed value", pytest.param("scan", marks=pytest.mark.slow)])
def test_it_is_validated_where_it_loads_the_compiler(name):
    """Only in a new process is the compiler not loaded before the pass."""
    code = f"import runpy; print(runpy.run_path({__file__!r}, run_name={name!r})['words']())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "passed"


def words():
    """Return the verdict on the model whose name this module runs under."""
    return validate(Branches(BODIES[__name__]), (X,)).verdict.words
