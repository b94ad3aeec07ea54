"""What tells two tensors' digests apart, beside the values of dense tensors."""

from __future__ import annotations

import torch
from torch.testing._internal.two_tensor import TwoTensor

from pytest_torchlens.capture import fingerprint

ONE, OTHER = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])


def test_every_part_of_a_wrapper_counts():
    both = {fingerprint(TwoTensor(first, second)) for first in (ONE, OTHER) for second in (ONE, OTHER)}
    assert len(both) == 4
    assert fingerprint(TwoTensor(ONE, OTHER)) == fingerprint(TwoTensor(ONE.clone(), OTHER.clone()))


def test_integers_scale_and_zero_point_of_a_quantized_tensor_count():
    integers = torch.tensor([1, 2], dtype=torch.uint8)
    made = torch._make_per_tensor_quantized_tensor
    assert len({fingerprint(made(integers, scale, zero)) for scale in (0.5, 0.25) for zero in (0, 3)}) == 4
    assert fingerprint(made(integers, 0.5, 3)) != fingerprint(made(integers + 1, 0.5, 3))


def test_values_count_in_the_order_of_their_places_whatever_the_strides():
    table = torch.arange(12.0).view(3, 4)
    for strided in (table.t(), table[:, 1:3], table[::2], table[1:], table.expand(2, 3, 4)):
        assert fingerprint(strided) == fingerprint(strided.clone(memory_format=torch.contiguous_format))
    assert fingerprint(table.t()) != fingerprint(table)


class Alone(torch.Tensor):
    """A tensor of which no operation is known."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called")


class Pair(Alone):
    """Two tensors that are one."""

    def __tensor_flatten__(self):
        return ["low", "high"], None


def test_a_class_sees_no_operation_of_ours():
    numbers = torch.arange(6.0)
    with_memory = torch.Tensor._make_subclass(Alone, numbers)
    assert fingerprint(with_memory) == fingerprint(numbers)
    pair = torch.Tensor._make_wrapper_subclass(Pair, (6,))
    pair.low, pair.high = numbers, torch.ones(1)
    digest = fingerprint(pair)
    assert digest.startswith("wrapper:")
    pair.high = torch.zeros(1)
    assert fingerprint(pair) != digest
    assert fingerprint(torch.Tensor._make_wrapper_subclass(Alone, (6,))) == ""
