"""Branches, loops, exceptions, modes and settings inside forward; values that pass through Python."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch import tanh

from tests.capture.programs import Programs
from tests.capture.programs import Twice
from tests.capture.programs import check
from tests.capture.programs import trace

PROGRAMS = Programs()
TABLE = {"shift": functools.partial(torch.add, alpha=2), "bend": torch.sin}
SCALE = torch.full((6,), 0.5)


@PROGRAMS.add(
    """
    input_1
    tanh_1: input_1
    add_1: tanh_1 input_1
    sin_1: add_1
    output_1: sin_1
    """
)
def names_held_early(x, squash=tanh):
    return TABLE["bend"](TABLE["shift"](squash(x), x))


@PROGRAMS.add(
    """
    input_1
    constant_1
    mul_1: input_1 constant_1
    output_1: mul_1
    """
)
def tensor_in_a_global(x):
    return x * SCALE


@PROGRAMS.add(
    """
    input_1
    constant_1
    clamp_1: constant_1
    add_1: input_1 clamp_1
    output_1: add_1
    """
)
class TensorInAPrivateAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self._shift = torch.arange(6.0) - 2

    def forward(self, x):
        return x + self._shift.clamp(0, 1)


@PROGRAMS.add(
    """
    input_1
    sum_1: input_1
    gt_1: sum_1
    mul_1: input_1
    mean_1: mul_1
    lt_1: mean_1
    output_1: mul_1
    """
)
def two_questions_in_a_row(x):
    if x.sum() > 0:
        x = x * 2
    if (x.mean() < 0).item():
        x = x + 1
    return x


@PROGRAMS.add(
    """
    input_1
    max_1:1: input_1
    linear_1:1: input_1 $shrink.weight
    max_1:2: linear_1:1
    linear_1:2: linear_1:1 $shrink.weight
    max_1:3: linear_1:2
    argmax_1: linear_1:2
    linear_2: linear_1:2 $exits.1.weight $exits.1.bias
    output_1: linear_2
    """,
    inputs=lambda: (torch.tensor([[1.0, 7.0]]),),
)
class StepsChosenByTheData(nn.Module):
    def __init__(self):
        super().__init__()
        self.shrink = nn.Linear(2, 2, bias=False)
        self.exits = nn.ModuleList(nn.Linear(2, 1) for _ in range(3))
        with torch.no_grad():
            self.shrink.weight.copy_(0.5 * torch.eye(2))

    def forward(self, x):
        while x.max().item() > 2:
            x = self.shrink(x)
        return self.exits[int(x.argmax())](x)


@PROGRAMS.add(
    """
    input_1
    gt_1: input_1
    sum_1: gt_1
    getitem_1: input_1
    sum_2: getitem_1
    add_1: sum_2
    output_1: add_1
    """
)
def cut_to_a_counted_length(x):
    return x[: int((x > 3).sum())].sum() + len(x)


@PROGRAMS.add(
    """
    input_1
    getitem_1: input_1
    tensor_1
    getitem_2: input_1
    add_1: tensor_1 getitem_2
    output_1: add_1
    """
)
def item_back_into_a_tensor(x):
    return torch.tensor([x[0].item(), 1.0]) + x[:2]


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    add_1:1: mul_1
    add_1:2: add_1:1
    output_1: add_1:2
    """
)
def errors_caught_inside(x):
    y = x * 1
    for other in (torch.ones(7), None):
        try:
            y.add_(other)
        except (RuntimeError, TypeError):
            y = y + 1
    return y


@PROGRAMS.add(
    """
    input_1
    linear_1: input_1 $risky.fc.weight
    sum_1: linear_1
    linear_2: input_1 $safe.fc.weight
    tanh_1: linear_2
    output_1: tanh_1
    """,
    inputs=lambda: (torch.ones(1, 2),),
)
class FailingChild(nn.Module):
    class Risky(Twice):
        def forward(self, x):
            raise ValueError(f"{super().forward(x).sum()} is too much")

    def __init__(self):
        super().__init__()
        self.risky, self.safe = self.Risky(), Twice()

    def forward(self, x):
        try:
            return self.risky(x)
        except ValueError:
            return self.safe(x).tanh()


@PROGRAMS.add(
    """
    input_1
    view_1: input_1
    unbind_1: view_1
    unbind_2: view_1
    getitem_1: unbind_1
    unbind_3: view_1
    unbind_4: view_1
    sum_1:1: unbind_3
    add_1:1: sum_1:1
    sum_1:2: unbind_4
    add_1:2: add_1:1 sum_1:2
    add_2: add_1:2
    stack_1: unbind_2
    eq_1: view_1
    any_1: eq_1
    positive_1: input_1
    output_1: add_2
    output_2: stack_1
    output_3: positive_1
    """
)
def python_protocols(x):
    table = x.view(2, 3)
    first, *rest = table
    text = f"{first[0]:.1f}{len(table)}"
    return sum(row.sum() for row in table) + float(text), torch.stack(rest), 5 in table, +x, divmod(len(x), 4)


ESCAPES = {
    "two_questions_in_a_row": [("__bool__", True), ("item", False)],
    "StepsChosenByTheData": [("item", 7.0), ("item", 3.5), ("item", 1.75), ("__int__", 1)],
    "cut_to_a_counted_length": [("__int__", 3)],
    "item_back_into_a_tensor": [("item", 1.0)],
}


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_into_python(name):
    _, history = trace(PROGRAMS[name], "grad")
    escapes = history.recording.escapes
    assert [(escape.name, escape.result) for escape in escapes] == ESCAPES[name]
    assert all(escape.value is not None and escape.frames for escape in escapes)


def test_the_module_stack_is_left_when_a_child_fails():
    _, history = trace(PROGRAMS["FailingChild"], "grad")
    modules = {op.layer_label_short: op.containing_module_origin for op in history if op.func_applied_name}
    assert (modules["linear_2"], modules["tanh_1"]) == ("safe.fc", None)


def test_every_recorded_call_has_its_line():
    _, history = trace(PROGRAMS["two_questions_in_a_row"], "grad")
    lines = [op.source_line for op in history if op.func_applied_name]
    assert all(line.endswith(", in two_questions_in_a_row") for line in lines)
    assert len(set(lines)) == 3


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
