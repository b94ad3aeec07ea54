"""Memory that a call moves with its aliases, memory that overlaps itself, tensors returned unchanged."""

from __future__ import annotations

import torch
from torch import nn

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from tests.capture.programs import Programs
from tests.capture.programs import assert_saved
from tests.capture.programs import check
from tests.capture.programs import numbers
from tests.models import Function

PROGRAMS = Programs()


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    getitem_1: mul_1
    add_1: getitem_1
    add_2: mul_1 ~add_1
    output_1: add_2
    """,
    mode="no_grad",
)
def memory_shared_with_other_processes(x):
    y = x * 2
    y.share_memory_()
    y[:2].add_(1)
    return y + 1


@PROGRAMS.add(
    """
    input_1
    clone_1: input_1
    getitem_1: clone_1
    resize_1: clone_1
    setitem_1: resize_1
    add_1: getitem_1 ~setitem_1
    mul_1: setitem_1 ~add_1
    output_1: mul_1
    """,
    mode="no_grad",
)
def memory_grown(x):
    y = x.clone()
    first = y[:2]
    y.resize_(8)
    y[2:] = 7
    first.add_(1)
    return y * 2


@PROGRAMS.add(
    """
    input_1
    clone_1: input_1
    getitem_1: clone_1
    ones_1
    resizeas_1: clone_1 ones_1
    setitem_1: resizeas_1
    add_1: getitem_1 ~setitem_1
    mul_1: setitem_1 ~add_1
    output_1: mul_1
    """,
    mode="no_grad",
)
def memory_grown_by_keywords(x):
    y = x.clone()
    first = y[:2]
    torch.resize_as_(input=y, the_template=torch.ones(4, 5))
    y[:] = 7
    first.add_(1)
    return y * 2


@PROGRAMS.add(
    """
    input_1
    clone_1: input_1
    getitem_1: clone_1
    ones_1
    resizeas_1: ones_1 clone_1
    setitem_1: resizeas_1
    add_1: getitem_1 ~setitem_1
    mul_1: setitem_1 ~add_1
    output_1: mul_1
    """,
    mode="no_grad",
)
def memory_grown_by_keywords_in_another_order(x):
    y = x.clone()
    first = y[:2]
    torch.resize_as_(the_template=torch.ones(4, 5), input=y)
    y[:] = 7
    first.add_(1)
    return y * 2


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    getitem_1: mul_1
    getitem_2: mul_1
    add_1: getitem_2
    getitem_3: mul_1
    add_2: getitem_1 ~add_1
    output_1: add_2
    """,
    mode="no_grad",
)
def memory_moved_between_write_and_read(x):
    y = x * 2
    last = y[4:]
    y[3:].add_(1)
    y[:2].share_memory_()
    return last + 3


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    getitem_1: mul_1
    getitem_2: mul_1
    add_1: getitem_2
    resize_1: mul_1 ~add_1
    getitem_3: resize_1
    mul_2: getitem_3
    add_2: getitem_1 ~resize_1 ~mul_2
    output_1: add_2
    """,
    mode="no_grad",
)
def memory_grown_between_write_and_read(x):
    y = x * 2
    last = y[4:]
    y[3:].add_(1)
    y.resize_(8192)[5].mul_(5)
    return last + 3


@PROGRAMS.add(
    """
    input_1
    emptystrided_1
    asstrided_1: emptystrided_1
    copy_1: asstrided_1 input_1
    add_1: emptystrided_1 ~copy_1
    output_1: add_1
    """,
    mode="no_grad",
)
def memory_that_overlaps_itself(x):
    rows = torch.empty_strided((5, 2), (1, 1))
    rows.as_strided((6,), (1,)).copy_(x)
    return rows + 1


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    getitem_1: mul_1
    add_1: getitem_1
    dropout_1: mul_1 ~add_1
    mul_2: dropout_1
    output_1: mul_2
    """
)
def handed_on_after_a_write_through_a_view(x):
    y = x * 1
    y[:3].add_(1)
    return nn.functional.dropout(y, training=False) * 2


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)


def test_a_write_after_a_move_leaves_saved_activations_as_they_were():
    def program(x):
        y = x * 2
        last = y[3:]
        y.share_memory_()
        y.add_(1)
        return last

    with torch.no_grad():
        history = ModelHistory(record(Function(program), numbers(), keep="all"))
    assert_saved(history, mul_1=42, getitem_1=30, add_1=48)
