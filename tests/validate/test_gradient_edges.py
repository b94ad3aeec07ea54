"""Gradients that forward takes from or to edges of the autograd graph, and nodes of it that forward calls."""

from __future__ import annotations

import functools
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import GradientEdge
from torch.autograd.graph import get_gradient_edge

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate


class Net(nn.Module):
    """Calls a function with itself and the input, and forgets the gradients that a backward pass left."""

    def __init__(self, function):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.function = function

    def forward(self, x):
        result = self.function(self, x)
        self.zero_grad()
        return result


def example():
    torch.manual_seed(4)
    return torch.randn(2, 3)


ONES = torch.ones(2, 3)


def to_an_edge(net, x):
    y = net.fc(x).tanh()
    edge = get_gradient_edge(y)
    return torch.autograd.grad(y.square().sum(), edge)[0]


def to_an_edge_by_name(net, x):
    y = net.fc(x).tanh()
    edges = [get_gradient_edge(y)]
    return torch.autograd.grad(outputs=[y.square().sum()], inputs=edges)[0]


def from_the_edge_of_a_freed_tensor(net, x):
    edge = get_gradient_edge(net.fc(x).tanh())
    return torch.autograd.grad(edge, net.fc.weight, ONES)[0]


def to_one_of_two_results(net, x):
    first, second = net.fc(x).unbind(0)
    edge = get_gradient_edge(second)
    return torch.autograd.grad((first * second).sum(), [edge, net.fc.weight])[0]


def to_the_edge_of_a_leaf(net, x):
    return torch.autograd.grad(net.fc(x).sum(), get_gradient_edge(net.fc.weight))[0]


def backward_from_an_edge(net, x):
    edge = get_gradient_edge(net.fc(x).tanh())
    torch.autograd.backward([edge], [ONES])
    return net.fc.weight.grad + 1


def backward_from_an_edge_to_one_leaf(net, x):
    y = net.fc(x).tanh()
    torch.autograd.backward(get_gradient_edge(y), ONES, inputs=[net.fc.bias])
    return net.fc.bias.grad + y


def backward_to_the_edge_of_a_leaf(net, x):
    torch.autograd.backward(net.fc(x).sum(), inputs=[get_gradient_edge(net.fc.bias)])
    return net.fc.bias.grad + 1


KNOWN = [
    to_an_edge,
    to_an_edge_by_name,
    from_the_edge_of_a_freed_tensor,
    to_one_of_two_results,
    to_the_edge_of_a_leaf,
    backward_from_an_edge,
    backward_from_an_edge_to_one_leaf,
    backward_to_the_edge_of_a_leaf,
]


@pytest.mark.parametrize("function", KNOWN)
def test_a_gradient_at_an_edge_is_replayed(function):
    plain = Net(function)
    expected = plain(example())
    found = validate(plain, (example(),))
    assert found.verdict.status is Status.PASSED
    assert torch.equal(plain(example()), expected)


def test_the_tensor_of_an_edge_is_a_parent():
    history = ModelHistory(record(Net(from_the_edge_of_a_freed_tensor), (example(),)))
    assert "tanh_1" in [label.rpartition("_")[0] for label in history["grad_1"].parent_layers]


def edge_inside_the_graph(y):
    return GradientEdge(y.grad_fn.next_functions[0][0], 0)


def to_an_edge_without_a_tensor(net, x):
    y = net.fc(x).tanh()
    return torch.autograd.grad(y.sum(), edge_inside_the_graph(y))[0]


def from_an_edge_whose_tensor_was_changed(net, x):
    y = net.fc(x) * 2
    edge = get_gradient_edge(y)
    y.add_(1)
    return torch.autograd.grad(edge, net.fc.weight, ONES)[0]


def backward_from_an_edge_without_a_tensor(net, x):
    torch.autograd.backward(edge_inside_the_graph(net.fc(x).tanh()), ONES)
    return net.fc.weight.grad + 1


UNKNOWN = [
    to_an_edge_without_a_tensor,
    from_an_edge_whose_tensor_was_changed,
    backward_from_an_edge_without_a_tensor,
]


@pytest.mark.parametrize("function", UNKNOWN)
def test_a_gradient_at_an_edge_without_a_known_tensor_is_unproven(function):
    verdict = validate(Net(function), (example(),)).verdict
    assert verdict.status is Status.UNPROVEN
    assert "an edge of the autograd graph whose tensor is not known" in verdict.words


def called_by_a_name(net, x):
    node = net.fc(x).tanh().grad_fn
    return node(ONES)


class Called:
    def __init__(self, node):
        self.node = node

    def get(self):
        return self.node


def node_of(net, x):
    return net.fc(x).tanh().grad_fn


def by_its_class(net, x):
    node = node_of(net, x)
    return type(node).__call__(node, ONES)


def by_an_index_in_a_variable(net, x):
    nodes, key = {"a": node_of(net, x)}, "a"
    return nodes[key](ONES)


def bound(net, x):
    call = node_of(net, x).__call__
    return call(ONES)


def further_into_the_graph(net, x):
    y = net.fc(x).tanh() * 2
    return y.grad_fn.next_functions[0][0](ONES)


def in_a_generator(net, x):
    y = net.fc(x).tanh()
    return next(node(ONES) for node in (y.grad_fn,))


CALLED = {
    "expression": lambda net, x: net.fc(x).tanh().grad_fn(ONES),
    "class": by_its_class,
    "variable index": by_an_index_in_a_variable,
    "bound": bound,
    "deep": further_into_the_graph,
    "generator": in_a_generator,
    "partial": lambda net, x: functools.partial(node_of(net, x), ONES)(),
    "operator": lambda net, x: functools.reduce(lambda gradient, node: node(gradient), [node_of(net, x)], ONES),
    "result": lambda net, x: Called(node_of(net, x)).get()(ONES),
    "choice": lambda net, x: (node_of(net, x) if net.training else None)(ONES),
    "evaluated": lambda net, x: eval("y.grad_fn(ones)", {"y": net.fc(x).tanh(), "ones": ONES}),  # noqa: S307
    "attribute": lambda net, x: (y := net.fc(x).tanh()).grad_fn is not None and y.grad_fn(ONES),
    "name": called_by_a_name,
    "edge": lambda net, x: (edge := get_gradient_edge(net.fc(x).tanh())) and edge.node(ONES),
    "map": lambda net, x: (y := net.fc(x).tanh()) is not None and torch.stack(list(map(y.grad_fn, [ONES]))),
    "list": lambda net, x: (y := net.fc(x).tanh()) is not None and [y.grad_fn][0](ONES),
    "object": lambda net, x: (holder := Called(net.fc(x).tanh().grad_fn)) and holder.node(ONES),
}


@pytest.mark.parametrize("function", CALLED.values(), ids=CALLED)
def test_a_node_that_forward_calls_is_not_shown(function):
    verdict = validate(Net(function), (example(),)).verdict
    assert verdict.status is Status.UNPROVEN
    assert "forward may have called a node of the autograd graph" in verdict.words
    assert "aten::tanh_backward" in verdict.words


def test_a_node_from_before_the_pass_is_called():
    node = node_of(Net(None), example())
    verdict = validate(Net(lambda net, x: net.fc(x) + node(ONES)), (example(),)).verdict
    assert verdict.status is Status.UNPROVEN
    assert "forward may have called a node of the autograd graph" in verdict.words


def hidden_operator(x):
    with torch._C.DisableTorchFunction():
        return x * 2


def hidden_function(x):
    with torch._C.DisableTorchFunction():
        return torch.mul(x, 2)


def unseen_function(x):
    made = torch._C._nn.gelu
    with torch._C.DisableTorchFunction():
        return made(x)


@pytest.mark.parametrize("hidden", [hidden_operator, hidden_function, unseen_function])
def test_what_runs_beside_a_node_is_still_missed(hidden):
    def hides(net, x):
        y = net.fc(x).tanh()
        return y.grad_fn(ONES) + hidden(x)

    verdict = validate(Net(hides), (example(),)).verdict
    assert verdict.status is Status.FAILED
    assert "but no recorded operation did it" in verdict.words


def to_an_edge_before_a_write(net, x):
    y = net.fc(x) * 2
    edge = get_gradient_edge(y)
    y.add_(1)
    return torch.autograd.grad(y.sum(), edge)[0]


def swapped_after_its_node_was_read(net, x):
    y, z = net.fc(x), x + 1
    assert y.grad_fn is not None
    torch.utils.swap_tensors(y, z)
    return y * 2


def test_a_tensor_that_changed_since_its_node_was_read():
    """What the gradient gives is an expanded tensor: its strides are kept."""
    found = validate(Net(to_an_edge_before_a_write), (example(),))
    assert found.verdict.status is Status.UNPROVEN, found.verdict.words


def test_a_tensor_whose_node_was_read_can_be_swapped():
    found = validate(Net(swapped_after_its_node_was_read), (example(),))
    assert found.verdict.status is Status.PASSED, found.verdict.words


NODES = []


class Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        NODES.append(weakref.ref(ctx))
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_node_that_forward_read_is_not_kept():
    """It holds the tensors that it saved."""
    kept = []

    def forward(net, x):
        NODES.clear()
        for _ in range(3):
            y = Watched.apply(net.fc(x))
            assert y.grad_fn is not None
            x = y.detach()
        del y
        kept[:] = [node() is not None for node in NODES]
        return x * 2

    record(Net(forward), (example(),))
    assert kept == [False, False, False]
