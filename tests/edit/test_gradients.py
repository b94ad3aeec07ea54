"""Gradients through edited passes, edits of gradients, and what a backward pass does not do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pytest_torchlens as tl
from pytest_torchlens import Part
from tests.models import Function

X = torch.linspace(-1, 1, 12).reshape(3, 4)
BOTH_WAYS = pytest.mark.parametrize("live", [False, True], ids=["replay", "live"])


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 2))


def with_hook(model, address, change):
    handle = model.get_submodule(address).register_forward_hook(lambda module, args, output: change(output))
    try:
        return model(X)
    finally:
        handle.remove()


def output(history):
    return history["output_1"].tensor_contents


@BOTH_WAYS
def test_an_edit_can_be_optimised(network, live):
    history = tl.log_forward_pass(network, X)
    steer = torch.zeros(6, requires_grad=True)
    output(history.edit({"3": lambda t: t + steer}, live=live)).square().sum().backward()
    same = torch.zeros(6, requires_grad=True)
    with_hook(network, "3", lambda t: t + same).square().sum().backward()
    assert torch.equal(steer.grad, same.grad)


@BOTH_WAYS
def test_gradients_are_edited_on_their_way_back(network, live):
    history = tl.log_forward_pass(network, X)
    edited = history.edit(gradients={Part("linear_2", feature=0): 0.0}, live=live)
    assert torch.equal(output(edited), output(history))
    output(edited).sum().backward()
    assert torch.equal(network[2].bias.grad == 0, torch.tensor([True, *[False] * 5]))
    assert network[0].weight.grad.abs().sum() > 0


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_a_backward_that_a_replay_cannot_run_is_told():
    inner = nn.Linear(4, 4)
    model = Function(lambda x: StraightThrough.apply(inner(x) * 3))
    history = tl.log_forward_pass(model, X)
    steer = torch.zeros(4, requires_grad=True)
    with pytest.warns(UserWarning, match="no gradients flow through StraightThrough, a custom autograd"):
        history.edit({"linear_1": lambda t: t + steer})
    output(history.edit({"linear_1": lambda t: t + steer}, live=True)).sum().backward()
    assert torch.equal(steer.grad, torch.full((4,), 9.0))


def test_hooks_that_a_replay_does_not_run_are_told():
    def hooked(x):
        y = inner(x)
        y.register_hook(lambda gradient: gradient * 10)
        return y * 1

    inner = nn.Linear(4, 4)
    model = Function(hooked)
    history = tl.log_forward_pass(model, X)
    steer = torch.zeros(4, requires_grad=True)
    with pytest.warns(UserWarning, match="does not run the hook on the gradient of what mul reads"):
        history.edit({"linear_1": lambda t: t + steer})
    output(history.edit({"linear_1": lambda t: t + steer}, live=True)).sum().backward()
    assert torch.equal(steer.grad, torch.full((4,), 30.0))
    sequential = nn.Sequential(inner, nn.Sigmoid())
    sequential[1].register_full_backward_hook(lambda module, before, after: None)
    history = tl.log_forward_pass(sequential, X)
    with pytest.warns(UserWarning, match="no gradients flow through the backward hooks of 1 in a replay"):
        history.edit({"linear_1": 0.0})


@pytest.mark.parametrize("reentrant", [False, True])
def test_an_edit_inside_a_checkpoint_has_no_right_gradients_and_is_told(reentrant):
    inner = nn.Linear(4, 4)
    model = Function(lambda x: checkpoint(lambda x: torch.tanh(inner(x)), x, use_reentrant=reentrant))
    history = tl.log_forward_pass(model, X.clone().requires_grad_())
    with pytest.warns(UserWarning, match="linear .* is inside a checkpoint, which a backward pass runs again without"):
        history.edit({"linear_1": lambda t: t * 3}, live=True)
    if reentrant:
        with pytest.warns(UserWarning, match="no gradients flow through a reentrant checkpoint in a replay"):
            history.edit({"linear_1": lambda t: t * 3})
    else:
        history.edit({"linear_1": lambda t: t * 3})  # warnings are errors in these tests


def overwrite_first_column(x):
    x[:, 0] = 0.0
    return x


@pytest.mark.parametrize(
    ("key", "function"),
    [
        ("relu_1", torch.relu_),
        ("sigmoid_1", torch.sigmoid_),
        ("setitem_1", overwrite_first_column),
        ("t_1", lambda x: x.t_().square()),
    ],
)
def test_gradients_flow_through_edited_writes_as_in_a_replay(key, function):
    inner = nn.Linear(4, 4)
    model = Function(lambda x: function(inner(x)).square())
    history = tl.log_forward_pass(model, X)

    def edited(live):
        steer = torch.full((), 0.5, requires_grad=True)
        found = output(history.edit({key: lambda t: t * steer}, live=live))
        found.sum().backward()
        return found, steer.grad

    found, gradient = edited(live=True)
    assert inner.weight.grad.any()  # a live pass begins with the model's input
    assert torch.equal(found, edited(live=False)[0])
    assert torch.equal(gradient, edited(live=False)[1])


def test_gradients_flow_through_an_edited_write_through_a_view():
    inner, steer = nn.Linear(4, 4), torch.full((), 0.5, requires_grad=True)
    model = Function(lambda x: (y := inner(x), y.t().exp_())[0].square())
    history = tl.log_forward_pass(model, X)
    output(history.edit({"exp_1": lambda t: t * steer}, live=True)).sum().backward()
    plain = torch.full((), 0.5, requires_grad=True)
    (inner(X).exp() * plain).square().sum().backward()
    assert torch.allclose(steer.grad, plain.grad)


def test_a_live_pass_leaves_a_pending_backward_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).train()
    pending = model(X).square().sum()
    history = tl.log_forward_pass(model, X)
    edited = history.edit({"linear_1": lambda t: t * 2}, live=True)
    expected = [model(X).square().sum(), model[2](model[1](model[0](X) * 2)).square().sum()]
    for loss, plain in ((pending, expected[0]), (output(history), expected[0]), (output(edited), expected[1])):
        found = torch.autograd.grad(loss.square().sum() if loss.dim() else loss, [*model.parameters()])
        wanted = torch.autograd.grad(plain, [*model.parameters()], retain_graph=True)
        assert all(map(torch.equal, found, wanted))
        assert found[0].any()


def test_the_gradient_of_a_pass_without_gradients_is_refused(network):
    with torch.no_grad():
        history = tl.log_forward_pass(network, X)
    with pytest.raises(ValueError, match=r"of linear_2_3: the pass has no gradients: record outside of"):
        history.edit(gradients={"linear_2": 0.0})
    history = tl.log_forward_pass(network, X)
    with pytest.raises(ValueError, match="gradient of input_1_0: it has none, as no parameter or input that"):
        history.edit(gradients={"input_1": 0.0})
    with pytest.raises(ValueError, match=r"of the gradient of linear_2_3 \[0\]: expected float32\[6\]"):
        history.edit(gradients={Part("linear_2")[0]: torch.zeros(5)})
    edited = history.edit(gradients={Part("linear_2")[0]: 0.0})
    assert [*map(str, edited.edits)] == ["linear_2_3 ← 0.0 as its gradient at [0]"]
