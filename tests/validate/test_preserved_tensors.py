"""Validation restores autograd state, arrays before tensors over them, expanded memory, optimizers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import mkldnn

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.validate import validate
from tests.models import Function
from tests.models import failures

X = torch.ones(3)


class CacheInABuffer(nn.Module):
    """Writes to a buffer in grad mode, freezes a parameter and follows its input."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("keys", torch.zeros(4, 3))

    def forward(self, x):
        self.keys[:2] = self.fc(x)
        self.fc.bias.requires_grad_(False)
        x.requires_grad_()
        return x @ self.keys.T


class CacheInAnAttribute(nn.Module):
    def __init__(self, keys):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.keys = keys

    def forward(self, x):
        self.keys[:2] = self.fc(x)
        return x @ self.keys.T


def test_flags_and_histories_are_restored():
    model, x = CacheInABuffer(), torch.ones(2, 3)
    found = validate(model, (x,))
    assert found, found.verdict
    assert model.fc.bias.requires_grad
    assert not x.requires_grad
    assert (model.keys.grad_fn, model.keys.requires_grad) == (None, False)


class LosesAGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.fc.weight.grad = torch.ones(3, 3)

    def forward(self, x):
        self.fc.weight.grad = None
        return self.fc(x)


def test_a_gradient_is_restored_beside_parameters_that_have_none():
    model = LosesAGradient()
    gradient = model.fc.weight.grad
    assert validate(model, (torch.ones(2, 3),))
    assert model.fc.weight.grad is gradient
    assert model.fc.bias.grad is None


def test_the_history_of_an_unregistered_tensor_is_restored():
    model = CacheInAnAttribute(torch.zeros(4, 3))
    found = validate(model, (torch.ones(2, 3),))
    assert found, found.verdict
    assert (model.keys.grad_fn, model.keys.requires_grad) == (None, False)


def test_a_view_keeps_the_history_that_came_up_and_this_is_said():
    model = CacheInAnAttribute(torch.zeros(9, 3)[:4])
    found = validate(model, (torch.ones(2, 3),))
    assert failures(found.verdict) == []
    assert found.verdict.part("observer").notes == (
        "the history of attribute 'keys' (Tensor) was changed, and could not be put back",
    )
    assert not model.keys.any()


def writes_a_row(x, y):
    y[0] = 5.0
    return (y * x).sum() + torch.autograd.grad(y.sum(), y)[0].sum()


def test_the_replay_writes_to_what_was_made_by_a_function():
    made = torch.ones(3, 3, requires_grad=True) * -0.0
    before = fingerprint(made)
    found = validate(Function(writes_a_row), (X, made))
    assert failures(found.verdict) == []
    assert fingerprint(made) == before


def test_an_array_is_put_back_after_tensors_over_it():
    def forward(x, array):
        array += 1
        return torch.from_numpy(array) * x

    array = np.ones(3, dtype=np.float32)
    found = validate(Function(forward), (X, array))
    assert found, found.verdict
    assert array.tolist() == [1, 1, 1]


def first_row_doubled(x, y):
    y[0].mul_(2)
    return y.sum() + x


REPEATED = {
    "expanded": lambda: torch.ones(1, 4).expand(3, 4),
    "expanded, two rows": lambda: torch.arange(6.0).reshape(1, 2, 3).expand(4, 2, 3),
    "windows": lambda: torch.arange(5.0).unfold(0, 3, 1),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
}


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("build", REPEATED.values(), ids=REPEATED)
def test_elements_that_are_one_in_memory_are_put_back(build, registered):
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", build())

        def forward(self, x):
            return first_row_doubled(x, self.table)

    model, y = Holds(), build()
    found = validate(model, (X[:1],)) if registered else validate(Function(first_row_doubled), (X[:1], y))
    assert failures(found.verdict) == []
    assert torch.equal(model.table if registered else y, build())


class Trains(nn.Module):
    """Steps an optimizer and a schedule in its forward."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.optimizer = torch.optim.Adam(self.fc.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def forward(self, x):
        for parameter in self.fc.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        self.schedule.step()
        return self.fc(x) * self.optimizer.param_groups[0]["lr"]

    def facts(self):
        gradients = [parameter.grad for parameter in self.fc.parameters()]
        weights = [fingerprint(parameter) for parameter in self.fc.parameters()]
        return repr((self.optimizer.state_dict(), self.schedule.state_dict(), gradients, weights))


def test_optimizer_and_schedule_are_restored():
    model = Trains()
    before = model.facts()
    found = validate(model, (X,))
    assert found, found.verdict
    assert model.facts() == before


class Rebuilds(nn.Module):
    """Changes its own hooks, children, parameters, and modules that it holds unregistered."""

    table = torch.zeros(3)

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.norms = [nn.BatchNorm1d(3)]

    def forward(self, x):
        self.fc.register_forward_hook(lambda module, args, output: output * 2)
        self.fc.weight.register_hook(lambda gradient: gradient)
        self.add_module(f"child{len(list(self.children()))}", nn.ReLU())
        self.fc.weight = nn.Parameter(self.fc.weight.detach() * 2)
        self.fc.weight.steps = getattr(self.fc.weight, "steps", 0) + 1
        Rebuilds.table.add_(1)
        return self.norms[0](torch.stack([self.fc(x), x])) * len(list(self.children())) * Rebuilds.table

    def facts(self):
        weight, norm = self.fc.weight, self.norms[0]
        about = (id(weight), fingerprint(weight), vars(weight), weight._backward_hooks, dict(self.fc._forward_hooks))
        held = (norm.running_mean.tolist(), norm.num_batches_tracked.item(), Rebuilds.table.tolist())
        return repr((about, held, [name for name, _ in self.named_modules()]))


def test_what_a_module_is_made_of_is_restored():
    model = Rebuilds()
    before = model.facts()
    found = validate(model, (X,))
    assert failures(found.verdict) == []
    assert model.facts() == before


def test_tensors_in_the_layout_of_onednn():
    """They have no storage that PyTorch shows, and memory all the same."""
    model = mkldnn.to_mkldnn(nn.Linear(4, 4).eval())
    weight = model.weight.to_dense().clone()
    verdict = validate(model, (torch.randn(2, 4).to_mkldnn(),)).verdict
    assert verdict, verdict.words
    assert torch.equal(model.weight.to_dense(), weight)


class WritesABuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        self.scale.mul_(0.9)
        return x * self.scale


TABLE = torch.ones(3)


def writes_a_global(x):
    return x * TABLE.mul_(0.9)


def writes_a_gradient(x, weight):
    weight.grad.zero_()
    return x * weight


def linear():
    model = nn.Linear(3, 3)
    model.weight.grad = torch.ones(3, 3)
    return model, (torch.ones(2, 3),), model.weight.grad


def batch_norm():
    model = nn.BatchNorm1d(3)
    return model, (torch.randn(4, 3),), model.running_mean


def buffer():
    model = WritesABuffer()
    return model, (X,), model.scale


def constant():
    return Function(writes_a_global), (X,), TABLE


def written_input():
    x = torch.ones(3)
    return Function(lambda x: x.mul_(2)), (x,), x


def base_of_a_written_view():
    base = torch.ones(2, 3)
    return Function(lambda x: x.mul_(2)), (base[0],), base


def gradient():
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return Function(writes_a_gradient), (X, weight), weight.grad


@pytest.mark.parametrize(
    "build", [linear, batch_norm, buffer, constant, written_input, base_of_a_written_view, gradient]
)
def test_a_graph_that_saved_a_tensor_before_can_run_backward(build):
    model, args, tensor = build()
    factor = torch.ones_like(tensor, requires_grad=True)
    values = tensor.clone()
    product = (factor * tensor).sum()
    validate(model, args)
    product.backward()
    assert torch.equal(factor.grad, values)
