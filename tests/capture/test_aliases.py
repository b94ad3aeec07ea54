"""Writes through views, slices, ``.data``, ``out=`` and lists: every later read depends on them."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.capture.programs import Programs
from tests.capture.programs import assert_saved
from tests.capture.programs import check
from tests.capture.programs import trace
from tests.models import Function

PROGRAMS = Programs()
ONES, SEVEN = torch.ones(6), torch.ones(7)


@PROGRAMS.add(
    """
    input_1
    view_1: input_1
    mul_1: view_1
    getitem_1: mul_1
    getitem_2: mul_1
    sub_1: getitem_1
    mul_2: getitem_2
    sum_1: mul_1 ~sub_1 ~mul_2
    output_1: sum_1
    """
)
def two_rows_written_then_whole_read(x):
    whole = x.view(2, 3) * 1
    top, bottom = whole[0], whole[1]
    top.sub_(5)
    bottom.mul_(3)
    return whole.sum(0)


@PROGRAMS.add(
    """
    input_1
    view_1: input_1
    mul_1: view_1
    getitem_1: mul_1
    getitem_2: mul_1
    zero_1: getitem_2
    add_1: getitem_1
    output_1: add_1
    """
)
def row_that_nobody_wrote(x):
    whole = x.view(2, 3) * 1
    bottom = whole[1]
    whole[0].zero_()
    return bottom + 1


@PROGRAMS.add(
    """
    input_1
    newzeros_1: input_1
    getitem_1: newzeros_1
    getitem_2:1: input_1
    setitem_1:1: newzeros_1 getitem_2:1
    getitem_2:2: input_1
    setitem_1:2: setitem_1:1 getitem_2:2
    add_1: getitem_1 ~setitem_1:2
    output_1: add_1
    """
)
def alias_taken_before_the_writes(x):
    table = x.new_zeros(2, 3)
    alias = table[:]
    for row in range(2):
        table[row] = x[row : row + 3]
    return alias + 0


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    add_1: mul_1 input_1
    relu_1: add_1
    mul_2: relu_1
    clamp_1: mul_2
    output_1: clamp_1
    """
)
def updates_one_after_the_other(x):
    h = x * 1
    h += x
    F.relu(h, inplace=True)
    h.mul_(2).clamp_(max=20)
    return h


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    data_1: mul_1
    add_1: data_1
    mul_2: mul_1 ~add_1
    output_1: mul_2
    """
)
def data_read_and_written(x):
    y = x * 1
    y.data.add_(1)
    return y * 2


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    view_1: mul_1
    zeros_1
    data_1: mul_1 zeros_1
    flatten_1: view_1
    add_1: data_1 flatten_1
    output_1: add_1
    """
)
def data_replaced_while_a_view_lives(x):
    y = x * 1
    view = y.view(2, 3)
    y.data = torch.zeros(6)
    return y + view.flatten()


@PROGRAMS.add(
    """
    input_1
    empty_1
    empty_2
    topk_1: input_1 empty_1 empty_2
    topk_2: input_1 empty_1 empty_2
    getitem_1: topk_1
    add_1: topk_1 getitem_1
    add_2: topk_1 ~add_1 topk_2
    output_1: add_2
    """
)
def results_put_into_given_tensors(x):
    values, places = torch.empty(2), torch.empty(2, dtype=torch.long)
    torch.topk(x, 2, out=(values, places))
    torch.add(values, 1, out=values[:])
    return values + places


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    mul_2: input_1
    foreachmul_1: mul_1 mul_2
    foreachmul_2: mul_1 mul_2
    sub_1: foreachmul_1 foreachmul_2
    output_1: sub_1
    """
)
def lists_of_tensors_at_once(x):
    a, b = x * 1, x * 2
    torch._foreach_mul_([a, b], 3.0)
    return a - b


@PROGRAMS.add(
    """
    input_1
    clone_1: input_1
    chunk_1: clone_1
    chunk_2: clone_1
    copy_1: chunk_1 chunk_2
    zero_1: chunk_2
    add_1: clone_1 ~copy_1 ~zero_1
    output_1: copy_1
    output_2: add_1
    """
)
def chunks_copied_over_each_other(x):
    y = x.clone()
    a, b = y.chunk(2)
    a.copy_(b)
    b.zero_()
    return a, y + 0


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    getitem_1: mul_1
    add_1: getitem_1
    getitem_2: mul_1 ~add_1
    add_2: getitem_2
    getitem_3: mul_1
    mul_2: getitem_3
    add_3: mul_1 ~add_2 ~mul_2
    output_1: add_3
    """
)
def rows_written_again_and_again(x):
    """A write to the same bytes replaces the one before it, which it read; writes to other bytes are added."""
    y = x * 1
    y[:3].add_(1)
    y[:3].add_(2)
    y[3:].mul_(2)
    return y + 0


@PROGRAMS.add(
    """
    input_1
    zeros_1
    getitem_1: input_1
    getitem_2: zeros_1
    setitem_1: getitem_2 getitem_1
    getitem_3: input_1
    t_1: zeros_1 ~setitem_1
    setitem_2: t_1 getitem_3
    sum_1: zeros_1 ~setitem_2
    output_1: sum_1
    """
)
def written_through_transposes(x):
    y = torch.zeros(2, 3)
    y[0][1] = x[0]
    y.t()[2] = x[:2]
    return y.sum(0)


@PROGRAMS.add(
    """
    input_1
    zeros_1
    real_1: zeros_1
    copy_1: real_1 input_1
    imag_1: zeros_1
    add_1: imag_1 input_1
    abs_1: zeros_1 ~copy_1 ~add_1
    output_1: abs_1
    """
)
def real_and_imaginary_parts(x):
    z = torch.zeros(6, dtype=torch.complex64)
    z.real.copy_(x)
    z.imag.add_(x)
    return z.abs()


@PROGRAMS.add(
    """
    input_1
    zeros_1
    ones_1
    view_1: input_1
    batchnorm_1: view_1 zeros_1 ones_1
    mul_1: zeros_1 ~batchnorm_1 ones_1
    add_1: batchnorm_1 mul_1
    output_1: add_1
    """
)
def running_statistics(x):
    mean, variance = torch.zeros(3), torch.ones(3)
    y = F.batch_norm(x.view(2, 3), mean, variance, training=True)
    return y + mean * variance


@PROGRAMS.add(
    """
    input_1
    getitem_1: input_1
    add_1: getitem_1
    mul_1: input_1 ~add_1
    output_1: mul_1
    """
)
def input_written_through_its_view(x):
    x[1:].add_(1)
    return x * 2


@PROGRAMS.add(
    """
    input_1
    clone_1: input_1
    getitem_1:1: clone_1
    getitem_2:1: clone_1
    add_1:1: getitem_1:1 getitem_2:1
    setitem_1:1: clone_1 ~add_1:1 add_1:1
    getitem_1:2: setitem_1:1
    getitem_2:2: setitem_1:1
    add_1:2: getitem_1:2 getitem_2:2
    setitem_1:2: setitem_1:1 ~add_1:2 add_1:2
    output_1: setitem_1:2
    """
)
def each_element_from_the_last(x):
    y = x.clone()
    for i in range(1, 3):
        y[i] += y[i - 1]
    return y


@PROGRAMS.add(
    """
    input_1
    clone_1: input_1
    gt_1: clone_1
    setitem_1: clone_1 gt_1
    gt_2: setitem_1
    maskedfill_1: setitem_1 gt_2
    tensor_1
    tensor_2
    indexput_1: maskedfill_1 tensor_1 tensor_2
    output_1: indexput_1
    """
)
def masked_indexed_and_filled(x):
    y = x.clone()
    y[y > 4] = 0
    y.masked_fill_(y > 2, -1.0)
    y.index_put_((torch.tensor([0, 0]),), torch.tensor(1.0), accumulate=True)
    return y


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    getitem_1: mul_1
    mul_2: getitem_1
    clone_1: mul_1 ~mul_2
    add_1: clone_1
    output_1: add_1
    """
)
def writes_in_inference_mode(x):
    with torch.inference_mode():
        y = x * 2
        y[1:].mul_(3)
    return y.clone() + 1


def test_saved_activations_are_as_when_made():
    _, history = trace(PROGRAMS["updates_one_after_the_other"], "grad")
    assert_saved(history, mul_1=21, add_1=42, relu_1=42, mul_2=84, clamp_1=4 + 8 + 12 + 16 + 20 + 20)
    _, history = trace(PROGRAMS["two_rows_written_then_whole_read"], "no_grad")
    assert_saved(history, mul_1=21, getitem_1=6, sub_1=-9, mul_2=45, sum_1=36)
    _, history = trace(PROGRAMS["chunks_copied_over_each_other"], "grad")
    assert_saved(history, clone_1=21, chunk_1=6, chunk_2=15, copy_1=15, zero_1=0, add_1=15)


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    constant_1
    copy_1: mul_1 constant_1
    mul_2: copy_1
    output_1: mul_2
    """,
    mode="no_grad",
)
def a_write_that_stops_halfway(x):
    y = x * 2
    with contextlib.suppress(RuntimeError):
        torch._foreach_add_([y, SEVEN], [ONES, ONES])
    return y * 3


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)


def part_as_parameter(x):
    flat = torch.arange(6.0)
    weight = nn.Parameter(flat[1:5].view(2, 2))
    flat.mul_(x.sum())
    return weight * 2


def test_a_parameter_over_a_part_of_a_tensor_has_an_edge_to_it():
    found = validate(Function(part_as_parameter), (torch.ones(2),))
    assert found.verdict.status is Status.PASSED
    assert found.history["mul_2"].has_input_ancestor


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_jagged_tensor_that_forward_makes_is_no_view_of_plain_memory():
    def forward(x):
        jagged = torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)
        return (jagged * 2).to_padded_tensor(0.0)

    forward(torch.rand(2, 3))  # the first jagged tensor of a process makes meta tensors, which PyTorch keeps
    verdict = validate(Function(forward), (torch.rand(2, 3),)).verdict
    assert verdict.status is Status.PASSED, verdict
