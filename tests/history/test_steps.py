"""What ran inside `vmap`, `grad`, `torch.cond` and the like: in the record, in its text, and in the drawing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch.func import functional_call
from torch.func import grad
from torch.func import grad_and_value
from torch.func import hessian
from torch.func import jacfwd
from torch.func import jacrev
from torch.func import jvp
from torch.func import vjp
from torch.func import vmap

import pytest_torchlens as tl
from pytest_torchlens.validate import validate
from tests.models import Function

X = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])


class Net(nn.Module):
    """A linear layer, and a function that uses it."""

    def __init__(self, body):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.body = body

    def forward(self, x):
        return self.body(x, lambda v: self.fc(v).sin())


def pulled_back(x, f):
    y, pull = vjp(f, x)
    return pull(y)[0]


def branch(x, f):
    return torch.cond(x.sum() > 0, f, lambda v: v * 2, (x,))


def first_branch_without_values(x, f):
    def several(v):
        with torch.no_grad():
            first, second = v.chunk(2)
        return f(torch.cat([second, first]) * v.shape[0])

    return branch(x, several)


STEPS = {
    "vmap": (lambda x, f: vmap(f)(x), "vmap", "linear sin"),
    "vmap in chunks": (lambda x, f: vmap(f, chunk_size=1)(x), "vmap", "linear sin linear sin"),
    "vmap of grad": (lambda x, f: vmap(grad(lambda v: f(v).sum()))(x), "vmap", "linear sin sum grad"),
    "grad": (lambda x, f: grad(lambda v: f(v).sum())(x), "grad", "linear sin sum"),
    "grad and value": (lambda x, f: grad_and_value(lambda v: f(v).sum())(x)[0], "gradandvalue", "linear sin sum"),
    "jvp": (lambda x, f: jvp(f, (x,), (x,))[1], "jvp", "linear sin"),
    "vjp": (pulled_back, "vjp", "linear sin"),
    "jacrev": (lambda x, f: jacrev(f)(x), "vjp", "linear sin"),
    "jacfwd": (lambda x, f: jacfwd(f)(x), "vmap", "makedual linear sin unpackdual"),
    "a write": (lambda x, f: vmap(lambda v: f(v).mul_(2))(x), "vmap", "linear sin mul"),
    "no gradients": (lambda x, f: vmap(torch.no_grad()(f))(x), "vmap", "linear sin"),
}
STEPS_WITH_GRADIENTS = {
    "cond": (lambda x, f: branch(x - 5, f), "cond", "mul"),
    "cond, the other branch": (lambda x, f: branch(x + 5, f), "cond", "linear sin"),
    "no step without a tensor": (
        lambda x, f: first_branch_without_values(x + 5, f),
        "cond",
        "chunk cat mul linear sin",
    ),
    "map": (lambda x, f: map_over(f, x), "map", "linear sin"),
    "map in a cond": (lambda x, f: branch(x + 5, lambda v: map_over(f, v)), "cond", "map linear sin"),
    "cond in a cond": (lambda x, f: branch(x + 5, lambda v: branch(v, f) + 1), "cond", "sum gt cond add"),
}


def steps_of(body, label):
    return " ".join(tl.log_forward_pass(Net(body), X)[label + "_1"].steps)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(("body", "label", "steps"), STEPS.values(), ids=STEPS)
def test_a_transform_lists_its_steps(body, label, steps, gradients):
    with torch.set_grad_enabled(gradients):
        assert steps_of(body, label) == steps


@pytest.mark.parametrize(("body", "label", "steps"), STEPS_WITH_GRADIENTS.values(), ids=STEPS_WITH_GRADIENTS)
def test_an_operator_lists_its_steps(body, label, steps):
    assert steps_of(body, label) == steps


def test_without_gradients_the_steps_are_operations():
    with torch.no_grad():
        history = tl.log_forward_pass(Net(branch), X + 5)
    assert [op.layer_type for op in history][1:-1] == ["sum", "gt", "linear", "sin"]


def test_a_hessian_lists_the_steps_of_all_that_it_nests():
    history = tl.log_forward_pass(Net(lambda x, f: hessian(lambda v: f(v).sum())(x)), X)
    assert {"linear", "sin", "sum", "grad"} <= set(history["vmap_1"].steps)


def test_every_result_of_one_call_lists_them():
    history = tl.log_forward_pass(Function(grad_and_value(lambda v: v.sin().sum())), X)
    assert [op.steps for op in history if op.layer_type == "gradandvalue"] == [("sin", "sum")] * 2


def test_other_operations_have_none():
    net = nn.Linear(3, 3)
    history = tl.log_forward_pass(Function(lambda x: functional_call(net, {"weight": net.weight * 2}, (x,))), X)
    assert [op.steps for op in history] == [()] * len(history)
    assert "Steps" not in str(history["linear_1"])


def loop(x):
    for number in range(3):
        x = vmap(lambda v, number=number: v.sin() if number % 2 else v.cos() * 2)(x)
    return x


class Cells(nn.Module):
    """Applies transforms that read one weight."""

    def __init__(self, body):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 3))
        self.body = body

    def forward(self, x):
        return self.body(x, lambda v: self.weight @ v)


def cell_by_cell(x, cell):
    for number in range(3):
        x = vmap(lambda v, number=number: cell(v).sin() if number % 2 else cell(v).cos())(x)
    return x


TRANSFORMS_OF_ONE_WEIGHT = {
    "the same steps": (lambda x, f: vmap(lambda v: f(v).sin())(vmap(lambda v: f(v).sin())(x)), [2]),
    "other steps": (lambda x, f: vmap(lambda v: f(v).sin())(vmap(lambda v: f(v).cos())(x)), [1, 1]),
    "other steps at one place": (cell_by_cell, [3]),
}


@pytest.mark.parametrize(("body", "passes"), TRANSFORMS_OF_ONE_WEIGHT.values(), ids=TRANSFORMS_OF_ONE_WEIGHT)
def test_transforms_of_one_weight_are_one_layer_if_their_steps_or_their_place_are_one(body, passes):
    found = validate(Cells(body), (X,))
    assert found.verdict
    layers = {one.layer_label: one.layer_passes_total for one in found.history if one.layer_type == "vmap"}
    assert [*layers.values()] == passes


@pytest.fixture(scope="module")
def history():
    def forward(x):
        return loop(vmap(lambda v: v.exp().neg().sigmoid().tanh())(x))

    return tl.log_forward_pass(Function(forward), X)


def test_the_text_of_an_operation_and_of_a_layer_lists_them(history):
    assert "\tSteps inside: exp, neg, sigmoid, tanh\n" in str(history["vmap_1"])
    assert "\tSteps inside: sin\n" in str(history["vmap_2:2"])
    assert "\tSteps inside: cos, mul (pass 1, 3); sin (pass 2)\n" in str(history["vmap_2"])
    assert "cos, mul (pass 1, 3); sin (pass 2)" in history["vmap_2"]._repr_html_()


def test_a_saved_history_has_them(history, tmp_path):
    history.save(tmp_path / "saved")
    loaded = tl.load(tmp_path / "saved")
    assert loaded["vmap_2:1"].steps == ("cos", "mul")
    assert "Steps inside: sin\n" in str(loaded["vmap_2:2"])


def test_a_table_has_them(history):
    pytest.importorskip("pandas")
    assert history.to_pandas().loc["vmap_1_1", "steps"] == ("exp", "neg", "sigmoid", "tanh")


def test_transforms_of_other_functions_are_no_loop():
    def forward(x):
        x = vmap(lambda v: v.sin())(x).neg()
        x = vmap(lambda v: v.cos().exp())(x).neg()
        return vmap(lambda v: v.tan())(x).neg()

    def repeated(x):
        x = vmap(lambda v: v.sin())(x).neg()
        x = vmap(lambda v: v.sin())(x).neg()
        return vmap(lambda v: v.sin())(x).neg()

    assert tl.log_forward_pass(Function(forward), X).model_max_recurrent_loops == 1
    assert tl.log_forward_pass(Function(repeated), X).model_max_recurrent_loops == 3


def test_sizes_that_the_compiler_made_symbols_are_no_steps():
    body, label, steps = STEPS_WITH_GRADIENTS["map in a cond"]
    for length in (3, 5, 7):  # from the second shape on, the compiler's graphs are for any length
        history = tl.log_forward_pass(Net(body), torch.ones(length, *X.shape[1:]) * 5)
        assert " ".join(history[label + "_1"].steps) == steps
