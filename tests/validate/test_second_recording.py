"""What two recordings with slightly other inputs show, and when they show nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_torchlens.capture import record
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from pytest_torchlens.validate.second_recording import changed_with_inputs
from tests.models import Function


def test_numbers_of_several_threads_are_not_compared():
    """Their calls are in another order each time."""

    def forward(x):
        return x * (x.sum().item() * 1.5)

    first, other = (record(Function(forward), (torch.full((3,), value),)) for value in (0.25, 0.3))
    assert [number for number, _ in changed_with_inputs(first, other)] == [1]
    for one in (first, other):
        one.threaded = True
        assert changed_with_inputs(first, other) == []
        one.threaded = False


def bisected(x: torch.Tensor) -> torch.Tensor:
    """Return a constant that holds the sum of `x`, which truth values told."""
    total, low, high = x.sum(), 0.0, 64.0
    for _ in range(26):
        middle = (low + high) / 2
        low, high = (middle, high) if total > middle else (low, middle)
    return torch.from_numpy(np.full((2, 3), low, dtype=np.float32))


def sets_a_row(c, x):
    c[0] = x[0]
    return c * 1


def sets_all(c, x):
    c[:, ...] = x
    return c * 1


def through(view):
    """Return a use that overwrites a view of the constant."""

    def use(c, x):
        view(c).copy_(x.flatten()[: view(c).numel()].view(view(c).shape))
        return c * 1

    return use


def reads_beside_a_view(c, x):
    c.detach().copy_(c)
    return c * x


USES = {
    "trunc_normal_": (lambda c, x: torch.nn.init.trunc_normal_(c) * x, Status.PASSED),
    "orthogonal_": (lambda c, x: torch.nn.init.orthogonal_(c) * x, Status.PASSED),
    "new_tensor": (lambda c, x: c.copy_(c.new_tensor(2.0)) * x, Status.PASSED),
    "full_like": (lambda c, x: c.copy_(torch.full_like(c, 2)) * x, Status.PASSED),
    "expand_as": (lambda c, x: c.copy_(x[0].expand_as(c)) * 1, Status.PASSED),
    "to": (lambda c, x: c.copy_(x.to(c)) * 1, Status.PASSED),
    "detach": (through(lambda c: c.detach()), Status.PASSED),
    "data": (through(lambda c: c.data), Status.PASSED),
    "view": (through(lambda c: c.view(-1)), Status.PASSED),
    "transposed": (through(lambda c: c.t()), Status.PASSED),
    "all of it": (through(lambda c: c[:]), Status.PASSED),
    "a view of a row": (through(lambda c: c[0]), Status.UNPROVEN),
    "beside a view": (reads_beside_a_view, Status.UNPROVEN),
    "a copy": (lambda c, x: c.reshape(-1).clone().fill_(0).view(2, 3) + c * x, Status.UNPROVEN),
    "+": (lambda c, x: c + x, Status.UNPROVEN),
    "add_": (lambda c, x: c.add_(x) * 1, Status.UNPROVEN),
    "out=, which it reads": (lambda c, x: torch.add(c, x, out=c) * 1, Status.UNPROVEN),
    "copy_ to itself": (lambda c, x: c.copy_(c) * x, Status.UNPROVEN),
    "a row": (sets_a_row, Status.UNPROVEN),
    "all rows": (sets_all, Status.PASSED),
    "copy_": (lambda c, x: c.copy_(x) * 1, Status.PASSED),
    "fill_": (lambda c, x: c.fill_(2) * x, Status.PASSED),
    "uniform_": (lambda c, x: c.uniform_() * x, Status.PASSED),
    "constant_": (lambda c, x: torch.nn.init.constant_(c, 2) * x, Status.PASSED),
    "out=": (lambda c, x: torch.mul(x, 2, out=c) * 1, Status.PASSED),
}


@pytest.mark.parametrize(("use", "status"), USES.values(), ids=USES)
def test_only_a_write_that_uses_no_former_contents_excuses_them(use, status):
    model = Function(lambda x: use(bisected(x), x))
    verdict = validate(model, (torch.linspace(0.5, 1.4, 6).view(2, 3),)).verdict
    assert verdict.status is status, verdict.words


class SharesMemory(torch.nn.Module):
    """Two parameters over one memory, as tied weights that were loaded: they are known before the pass begins."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(3))
        self.shift = torch.nn.Parameter(self.scale.data)

    def forward(self, x):
        return x * self.scale + self.shift


def test_parameters_that_share_memory_have_the_same_contents_in_both_recordings():
    verdict = validate(SharesMemory(), (torch.rand(2, 3),)).verdict
    assert (verdict.status, verdict.unproven) == (Status.PASSED, ())


class ScalesItsWeight(torch.nn.Module):
    """Writes what it computes from its input to a parameter, through an array that nothing announces."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.array = self.weight.detach().numpy()

    def forward(self, x):
        self.array[:] = 1.0 + float(x.detach().numpy().sum())
        return x * self.weight


def test_a_parameter_that_depends_on_the_inputs_has_other_contents_in_the_second_recording():
    model, x = ScalesItsWeight(), torch.rand(2, 3)
    first = record(model, (x,), parameters_too=True)
    other = record(model, (x * 2,), parameters_too=True)
    assert [message.partition(" with")[0] for _, message in changed_with_inputs(first, other)] == [
        "it reads parameter 'weight'"
    ]
    first, other = (record(model, (value,)) for value in (x, x * 2))
    assert changed_with_inputs(first, other) == []
