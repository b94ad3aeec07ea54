"""Two passes as one graph if a branch is in a loop: the passes of the loop stay separate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from tests.models import Function


def merged(function, *inputs):
    """Return the merged graph of two passes of one function."""
    model = Function(function)
    first, second = (tl.log_forward_pass(model, [torch.ones(2, 4), *args]) for args in inputs)
    graph = first.merge(second)
    places = range(len(graph.operations))
    assert all(parent < place for place in places for parent, _ in graph.operations[place].edges)
    assert sorted(op.first for op in graph.operations if op.first) == sorted(op.label for op in first)
    assert sorted(op.second for op in graph.operations if op.second) == sorted(op.label for op in second)
    return graph


def types(graph):
    """Return function and whether first, second or both ran it."""
    return " ".join(
        op.operation.layer_type + ("" if op.in_both else "<" if op.first else ">") for op in graph.operations
    )


def another_branch_in_each_pass(x, first):
    for i in range(2):
        c = x.sum() > -1e9 if first == i else x.sum() > 1e9
        if c:  # noqa: SIM108
            x = torch.exp(x * 0.1)
        else:
            x = torch.cos(x)
    return x


def test_opposite_branches_in_a_loop():
    once = "sum gt cos> mul< exp<"
    again = "sum gt mul> exp> cos<"
    assert types(merged(another_branch_in_each_pass, [0], [1])) == f"input {once} {again} output"


def long_branches(x, first):
    for i in range(2):
        if (x.sum() > -1e9) if first == i else (x.sum() > 1e9):
            x = torch.exp(x)
            x = torch.sin(x)
            x = torch.tan(x)
        else:
            x = torch.cos(x)
    return x


def test_a_long_branch_is_not_paired_with_another_pass():
    branch = "exp{0} sin{0} tan{0}"
    once, again = f"sum gt cos> {branch.format('<')}", f"sum gt {branch.format('>')} cos<"
    assert types(merged(long_branches, [0], [1])) == f"input {once} {again} output"


def more_or_fewer_passes(x, count, which):
    for i in range(count):
        x = torch.sin(x) if (x + 0).sum() > -1e9 else x
        if x.sum() > (-1e9 if i == which else 1e9):  # noqa: SIM108
            x = torch.exp(x * 0.1)
        else:
            x = torch.cos(x)
    return torch.tanh(x)


def test_passes_of_which_one_has_more():
    once, further = "add sum gt sin sum gt", "add< sum< gt< sin< sum< gt<"
    graph = merged(more_or_fewer_passes, [3, 2], [2, 0])
    assert types(graph) == f"input {once} mul> exp> cos< {once} cos {further} mul< exp< tanh output"


class ReadsABufferInABranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x):
        if x.sum() > 0:
            x = x + self.offset
        x = torch.cos(x)
        x = torch.sin(x)
        return x * self.offset


def test_a_buffer_stands_before_what_reads_it_first():
    model = ReadsABufferInABranch()
    up, down = (tl.log_forward_pass(model, sign * torch.ones(2, 4)) for sign in (1, -1))
    assert types(up.merge(down)) == "input sum gt buffer add< cos sin mul output"
    assert types(down.merge(up)) == "input sum gt buffer add> cos sin mul output"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_graph_and_itself_are_one(count):
    graph = merged(more_or_fewer_passes, [count, 1], [count, 1])
    assert graph.only_first == graph.only_second == ()
