"""Modes and settings inside forward are restored when its operations are replayed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend
from torch.nn.attention import sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_torchlens.capture import record
from tests.capture.programs import Programs
from tests.capture.programs import check
from tests.models import Function

PROGRAMS = Programs()


@PROGRAMS.add(
    """
    input_1
    getitem_1: input_1
    getitem_2: input_1
    matmul_1: getitem_1 getitem_2
    float_1: matmul_1
    float_2: matmul_1
    matmul_2: float_1 float_2
    output_1: matmul_2
    """
)
def autocast_inside(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = x[None] @ x[:, None]
        with torch.autocast("cpu", enabled=False):
            return product.float() @ product.float()


@PROGRAMS.add(
    """
    input_1
    ones_1
    add_1: input_1 ones_1
    output_1: add_1
    """
)
def default_dtype_inside(x):
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(6)
    finally:
        torch.set_default_dtype(torch.float32)


@PROGRAMS.add(
    """
    input_1
    view_1: input_1
    scaleddotproductattention_1: view_1
    output_1: scaleddotproductattention_1
    """
)
def chosen_attention_kernel(x):
    query = x.view(1, 1, 2, 3)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, query, query)


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    detach_1: mul_1
    add_1: detach_1 input_1
    output_1: add_1
    """
)
def gradients_off_inside(x):
    with torch.no_grad():
        y = x * 2
    return y.detach() + x


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    add_1: mul_1
    output_1: add_1
    """
)
def a_mode_of_its_own(x):
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        y = x * 2
    return y + 1


class Doubling(TorchFunctionMode):
    """A tensor subclass that changes the sine."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Doubling, Dispatching])
def test_fingerprints_of_arguments_are_taken_in_a_thorough_pass_or_of_a_suspect(mode):
    def circumstances(**options):
        with mode():
            recording = record(Function(lambda x: x.sin().cos()), (torch.ones(3),), **options)
        return {
            recording.calls[number].info.name: list(one.arguments) for number, one in recording.circumstances.items()
        }

    assert circumstances() == {}
    assert circumstances(keep=frozenset(["cos"])) == {"cos": ["0"]}
    assert circumstances(thorough=True) == {"sin": ["0"], "cos": ["0"]}


def test_a_mode_around_a_transform_hears_what_it_hears_in_a_plain_call():
    def forward(x):
        with Doubling():
            return torch.vmap(torch.sin)(x.expand(2, 6))

    x = torch.linspace(0, 1, 6)
    recording = record(Function(forward), (x,))
    assert torch.equal(recording.output, forward(x))
    assert [call.info.layer_type for call in recording.calls] == ["expand", "vmap"]


@PROGRAMS.add(
    """
    input_1
    sin_1: input_1
    mul_1: sin_1 input_1
    output_1: mul_1
    """
)
def operators_called_by_their_low_names(x):
    return torch.ops.aten.mul.Tensor(torch.ops.aten.sin(x), x)


@PROGRAMS.add(
    """
    input_1
    ones_1
    zeros_1
    linear_1: input_1 ones_1 zeros_1
    output_1: linear_1
    """
)
def other_parameters_for_a_layer(x):
    layer = nn.Linear(6, 2, device="meta")
    given = {"weight": torch.ones(2, 6), "bias": torch.zeros(2)}
    return torch.func.functional_call(layer, given, (x,))


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
