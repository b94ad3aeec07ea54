"""The gradients of saved activations in every kind of backward pass."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from tests.models import Function
from tests.models import Overwriting
from tests.models import SmallConvNet


def traced_with_gradients():
    torch.manual_seed(2)
    model, x = Overwriting(), torch.rand(1, 1, 5, 5, requires_grad=True)
    return model, x, tl.log_forward_pass(model, x, save_gradients=True)


def test_gradients_of_every_layer():
    model, x, history = traced_with_gradients()
    history["output_2"].tensor_contents.square().sum().backward()
    conv = nn.functional.conv2d(x, model.conv.weight, model.conv.bias)
    relu = conv.relu()
    gradients = torch.autograd.grad(relu.square().sum(), [relu, conv, x])
    for key, wanted in zip(["relu_1", "conv2d_1", "input_1"], gradients, strict=True):
        assert torch.equal(history[key].grad_contents, wanted), key
        assert history[key].grad_shape == tuple(wanted.shape)
    assert torch.equal(history["output_2"].grad_contents, gradients[0])
    assert history["argmax_1"].grad_contents is None
    assert history["argmax_1"].grad_shape is None
    assert not history["argmax_1"].has_saved_grad


def test_backward_passes_are_told_apart():
    _, _, history = traced_with_gradients()
    assert history.backward_passes == []
    history["output_2"].tensor_contents.sum().backward(retain_graph=True)
    history["conv2d_1"].tensor_contents.sum().mul(3).backward()
    first, second = history.backward_passes
    assert (first.number, second.number) == (1, 2)
    assert first.layers == ("input_1_0", "conv2d_1_1", "relu_1_2", "output_2_6")
    assert second.layers == ("input_1_0", "conv2d_1_1")
    assert set(history["conv2d_1"].gradients) == {1, 2}
    assert set(history["relu_1"].gradients) == {1}
    assert torch.equal(history["conv2d_1"].grad_contents, torch.full((1, 2, 3, 3), 3.0))


def test_parameters_are_left_as_plain_pytorch_leaves_them():
    model, x, history = traced_with_gradients()
    history["output_2"].tensor_contents.square().sum().backward()
    noted = [(parameter.grad, parameter._backward_hooks) for parameter in model.parameters()]
    model.zero_grad()
    model(x)[1].square().sum().backward()
    for (gradient, hooks), parameter in zip(noted, model.parameters(), strict=True):
        assert torch.equal(gradient, parameter.grad)
        assert gradient.stride() == parameter.grad.stride()
        assert not hooks


def test_a_gradient_that_a_parameter_takes_over_stays_as_it_was():
    class Plus(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return x * 2 + self.weight

    model, x = Plus(), torch.ones(2, requires_grad=True)
    history = tl.log_forward_pass(model, x, save_gradients=True)
    (history["output_1"].tensor_contents * torch.tensor([1.0, 5.0])).sum().backward()
    model.weight.grad.mul_(100)
    assert history["add_1"].grad_contents.tolist() == [1.0, 5.0]


def test_only_saved_layers_keep_gradients():
    model = SmallConvNet()
    history = tl.log_forward_pass(model, torch.rand(2, 3, 8, 8), layers_to_save=["conv", "linear"], save_gradients=True)
    history["linear_1"].tensor_contents.sum().backward()
    assert [op.label for op in history.operations if op.has_saved_grad] == ["conv2d_1_1", "linear_1_6"]
    assert len(history.backward_passes[0].layers) > 4


def test_input_is_left_without_hooks_when_the_history_goes():
    _, x, history = traced_with_gradients()
    assert x._backward_hooks
    del history
    gc.collect()
    assert not x._backward_hooks


def test_what_is_traced_is_not_kept_alive():
    _, _, history = traced_with_gradients()
    ref = weakref.ref(history["relu_1"].tensor_contents)
    del history
    gc.collect()
    assert ref() is None


def test_without_the_option_there_is_no_gradient():
    history = tl.log_forward_pass(Overwriting(), torch.rand(1, 1, 5, 5, requires_grad=True))
    history["output_2"].tensor_contents.sum().backward()
    assert history["conv2d_1"].gradients == {}
    assert history.backward_passes == []


def test_no_gradients_where_autograd_is_off():
    with torch.no_grad(), pytest.warns(UserWarning, match="nothing in this pass requires a gradient"):
        _, _, history = traced_with_gradients()
    assert history["conv2d_1"].grad_contents is None


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_create_graph_leaves_no_graph_in_what_is_saved():
    _, _, history = traced_with_gradients()
    history["output_2"].tensor_contents.pow(3).sum().backward(create_graph=True)
    assert not history["conv2d_1"].grad_contents.requires_grad


# -- in-place writes -----------------------------------------------------------------------------------------------

WEIGHT = torch.tensor([1.0, 10.0, 100.0, 1000.0])


def view_then_base(x):
    y = x * 2
    v = y[1:]
    v.mul_(3)
    return (y * WEIGHT).sum()


def view_read_before_and_after(x):
    y = x * 2
    v = y[1:]
    w = v * 5
    v.mul_(3)
    return w.sum() + (v * WEIGHT[1:]).sum()


def view_written_twice(x):
    y = x * 2
    v = y[1:]
    v.mul_(3)
    v.add_(x[1:])
    return (v * WEIGHT[1:]).sum()


def part_set(x):
    y = x * 2
    y[1:] = x[1:] * 7
    return (y * WEIGHT).sum()


def base_without_gradient(x):
    y = torch.zeros(4)
    v = y[1:3]
    v.copy_(x[:2] * 2)
    return (y * WEIGHT).sum()


def view_of_a_transposed_view(x):
    y = (x * 2).view(2, 2).t()
    s = y[0]
    s.mul_(3)
    return (s * torch.tensor([1.0, 10.0])).sum()


def base_overwritten(x):
    y = x * 2
    v = y[1:]
    w = v * 5
    y.mul_(3)
    return (y * WEIGHT).sum() + w.sum()


IN_PLACE = {
    # worked out by hand: the derivative of the result by the output of each operation at that time
    view_then_base: {"mul_1": [1, 30, 300, 3000], "getitem_1": [30, 300, 3000], "mul_2": [10, 100, 1000]},
    view_read_before_and_after: {
        "mul_1": [0, 35, 305, 3005], "getitem_1": [35, 305, 3005], "mul_2": [1, 1, 1], "mul_3": [10, 100, 1000],
    },
    view_written_twice: {
        "mul_1": [0, 30, 300, 3000], "getitem_1": [30, 300, 3000], "mul_2": [10, 100, 1000], "add_1": [10, 100, 1000],
    },
    part_set: {"mul_1": [1, 0, 0, 0], "mul_2": [10, 100, 1000], "setitem_1": [1, 10, 100, 1000]},
    base_without_gradient: {"mul_1": [10, 100], "copy_1": [10, 100], "zeros_1": None},
    view_of_a_transposed_view: {"mul_1": [3, 0, 30, 0], "getitem_1": [3, 30], "mul_2": [1, 10]},
    base_overwritten: {"mul_1": [3, 35, 305, 3005], "getitem_1": [5, 5, 5], "mul_3": [1, 10, 100, 1000]},
}  # fmt: skip


@pytest.mark.parametrize("program", list(IN_PLACE), ids=lambda program: program.__name__)
def test_gradients_of_what_is_overwritten(program):
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    (wanted,) = torch.autograd.grad(program(x), x)
    history = tl.log_forward_pass(Function(program), x, save_gradients=True)
    for _ in range(2):  # the second pass is a pass of its own
        history.recording.output.backward(retain_graph=True)
    for number in (1, 2):
        assert torch.equal(history["input_1"].gradients[number], wanted)
        for key, expected in IN_PLACE[program].items():
            found = history[key].gradients.get(number)
            assert (found if found is None else found.tolist()) == expected, key
    assert torch.equal(x.grad, 2 * wanted)


# -- kinds of backward passes --------------------------------------------------------------------------------------


def test_only_what_a_partial_pass_reaches_is_noted():
    x = torch.ones(2, requires_grad=True)
    history = tl.log_forward_pass(Function(lambda x: (x * 2).exp().sum()), x, save_gradients=True)
    torch.autograd.grad(history.recording.output, history["mul_1"].tensor_contents, retain_graph=True)
    assert history.backward_passes[0].layers == ("mul_1_1", "exp_1_2", "sum_1_3", "output_1_4")
    assert x.grad is None
    assert not history["input_1"].has_saved_grad


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_a_second_derivative_is_a_pass_of_its_own():
    x = torch.tensor([3.0], requires_grad=True)
    history = tl.log_forward_pass(Function(lambda x: (x**3).sum()), x, save_gradients=True)
    (first,) = torch.autograd.grad(history.recording.output, x, create_graph=True)
    first.backward()
    assert history["input_1"].gradients[1].tolist() == [27.0]
    assert history["input_1"].gradients[2].tolist() == [18.0]
    assert x.grad.tolist() == [18.0]


def test_a_gradient_is_noted_as_it_arrives_whatever_hooks_make_of_it():
    def forward(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * 100)
        return y.sum()

    x = torch.ones(2, requires_grad=True)
    history = tl.log_forward_pass(Function(forward), x, save_gradients=True)
    history.recording.output.backward()
    assert history["mul_1"].grad_contents.tolist() == [1.0, 1.0]
    assert history["input_1"].grad_contents.tolist() == x.grad.tolist() == [200.0, 200.0]


def test_a_pass_from_several_losses_is_one():
    x = torch.ones(2, requires_grad=True)
    history = tl.log_forward_pass(Function(lambda x: ((x * 2).sum(), (x * 3).sum())), x, save_gradients=True)
    torch.autograd.backward(history.recording.output)
    assert len(history.backward_passes) == 1
    assert history["input_1"].grad_contents.tolist() == [5.0, 5.0]


def test_training_goes_on_as_without_recording():
    torch.manual_seed(0)
    model, x = SmallConvNet(), torch.rand(2, 3, 8, 8)
    other = copy.deepcopy(model)
    for net in (model, other):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            if net is model:
                loss = tl.log_forward_pass(net, x, save_gradients=True).recording.output.square().mean()
            else:
                loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
    for mine, plain in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, plain)
        assert torch.equal(mine.grad, plain.grad)
