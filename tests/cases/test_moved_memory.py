"""Memory that is elsewhere after a call: its aliases went with it."""

from __future__ import annotations

from tests.cases.programs import Programs
from tests.cases.programs import check

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


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
