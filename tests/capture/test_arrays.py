"""Memory shared with NumPy: arrays made from tensors, tensors made from arrays, and writes to both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pytest_torchlens.capture.memory import copy_of_array
from pytest_torchlens.validate import validate
from tests.capture.programs import Programs
from tests.capture.programs import assert_saved
from tests.capture.programs import check
from tests.capture.programs import trace
from tests.models import Function
from tests.models import failures

PROGRAMS = Programs()


class PartlyInNumpy(torch.autograd.Function):
    """One argument goes on through torch, the other through an array."""

    @staticmethod
    def forward(ctx, x, y):
        return torch.from_numpy(np.sin(x.detach().numpy())) + y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    exp_1: input_1
    detach_1: mul_1
    constant_1
    add_1: constant_1 exp_1
    partlyinnumpy_1: mul_1 exp_1
    output_1: partlyinnumpy_1
    """,
    mode="no_grad",
)
def through_an_array(x):
    return PartlyInNumpy.apply(x * 2, x.exp())


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    asstrided_1: mul_1
    add_1: asstrided_1
    asstrided_2: mul_1 ~add_1
    mul_2: asstrided_2
    mul_3: mul_1 ~mul_2
    output_1: mul_3
    """,
    mode="no_grad",
)
def tensors_over_arrays_of_tensors(x):
    y = x * 1
    torch.as_tensor(y.numpy()).add_(1)
    torch.asarray(y.numpy()).mul_(2)
    return y * 3


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    detach_1: mul_1
    constant_1
    copy_1: detach_1 constant_1
    add_1: copy_1
    constant_2
    copy_2: copy_1 constant_2
    add_2: add_1 copy_2
    output_1: add_2
    """
)
def written_through_an_array(x):
    y = (x * 2).detach()
    array = y.numpy()
    array += 1
    z = y + 1
    array *= 2
    return z + y


@PROGRAMS.add(
    """
    input_1
    constant_1
    copy_1: input_1 constant_1
    mul_1: copy_1
    output_1: mul_1
    """
)
def input_written_through_an_array(x):
    x.numpy()[0] = 7
    return x * 2


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    detach_1: mul_1
    constant_1
    copy_1: detach_1 constant_1
    add_1: copy_1
    asstrided_1: add_1
    mul_2: asstrided_1 add_1
    output_1: mul_2
    """
)
def array_back_as_a_tensor(x):
    y = (x * 2).detach()
    array = y.numpy()
    back = torch.from_numpy(array)
    array[1:] = 0
    y.add_(1)
    return back * y


@PROGRAMS.add(
    """
    input_1
    buffer_1
    add_1: input_1 buffer_1
    output_1: add_1
    """
)
class CountsInAnArray(nn.Module):
    """The write comes after the last read: it changes the final state, not the result."""

    def __init__(self):
        super().__init__()
        self.register_buffer("held", torch.zeros(6))

    def forward(self, x):
        y = x + self.held
        self.held.numpy()[0] += 1
        return y


@PROGRAMS.add(
    """
    input_1
    constant_1
    mul_1: input_1 constant_1
    constant_2
    copy_1: constant_1 constant_2
    add_1: mul_1 copy_1
    output_1: add_1
    """
)
def an_array_of_its_own_between_two_reads(x):
    array = np.ones(6, dtype="float32")
    table = torch.from_numpy(array)
    y = x * table
    array[0] = 5
    return y + table


def test_activations_under_an_array_are_kept_as_they_were():
    _, history = trace(PROGRAMS["written_through_an_array"], "grad")
    assert_saved(history, mul_1=42, detach_1=42, copy_1=48, add_1=54, copy_2=96, add_2=150)
    origins = {history[label].constant_origin for label in history.constant_layers}
    assert origins == {"an array, written to by Python"}


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)


def test_memory_that_a_tensor_left_belongs_to_it_no_longer():
    array = np.ones(3, np.float32)

    def forward(x):
        moved = torch.from_numpy(array)
        y = moved + x
        moved.data = y * 3
        return torch.from_numpy(array) * 2 + moved

    assert failures(validate(Function(forward), (torch.ones(3),)).verdict) == []


def test_memory_that_a_tensor_left_belongs_to_its_views():
    def forward(x):
        y = x * 2
        view = y[:2]
        with torch._C.DisableTorchFunction():
            unseen = y.detach()
        z = unseen + 1
        y.data = torch.zeros_like(x)
        with torch._C.DisableTorchFunction():
            unseen = view.detach()
        view.add_(1)
        return unseen * y[:2] + z[:2]

    assert failures(validate(Function(forward), (torch.ones(3),)).verdict) == []


def makes_a_constant(x):
    return torch.Tensor([1.0, 2.0, 3.0])


def makes_a_constant_of_an_array(x):
    return torch.from_numpy(np.ones(3, np.float32))


@pytest.mark.parametrize("make", [makes_a_constant, makes_a_constant_of_an_array])
def test_a_constant_that_has_other_memory_at_the_end_was_known_at_its_first_use(make):
    def forward(x):
        moved = make(x)
        y = moved + x
        moved.data = y * 3
        return y + moved

    assert failures(validate(Function(forward), (torch.ones(3),)).verdict) == []


@pytest.mark.parametrize("seed", range(20))
def test_arrays_of_any_strides_become_tensors_of_the_same_strides(seed):
    """Transposed, stepped, reversed, broadcast and empty arrays, as a random walk."""
    drawn = np.random.default_rng(seed)
    array = np.arange(360.0, dtype="float32").reshape(6, 5, 4, 3).transpose(drawn.permutation(4))
    array = array[tuple(slice(int(drawn.integers(2)), None, int(drawn.choice([1, 2, 3]))) for _ in range(4))]
    array = np.broadcast_to(array, (2, *array.shape)) if seed % 3 else array[:, :0] if seed % 2 else array[::-1]
    copied = copy_of_array(array)
    assert (copied.strides, copied.tolist()) == (array.strides, array.tolist())
    assert not np.shares_memory(copied, array)
    if min(array.strides) >= 0:
        assert validate(Function(lambda x: torch.tensor(array).sum() + torch.tensor(array) * x), (torch.ones(()),))
