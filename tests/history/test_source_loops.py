"""How often each loop of the source ran, also where several share a layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.validate import validate
from tests.history.loop_programs import trace
from tests.models import Function


class OneLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)


def loops_of(model, x=None):
    """Return line below the ``def``, layers and passes of each loop."""
    history = trace(model, torch.ones(1, 2) if x is None else x)
    first = type(model).forward.__code__.co_firstlineno
    return [
        (int(loop.source_line.split(":")[1].split(",")[0]) - first, loop.layers, loop.num_passes)
        for loop in history.loops
    ]


class TwoInARow(OneLinear):
    def forward(self, x):
        for _ in range(3):
            x = torch.relu(self.fc(x))
        x = torch.tan(x)
        for _ in range(2):
            x = torch.relu(self.fc(x))
        return self.fc(x)


def test_two_loops_that_share_layers():
    assert loops_of(TwoInARow()) == [(1, ("linear_1_1", "relu_1_2"), 3), (4, ("linear_1_1", "relu_1_2"), 2)]


class OneInAnother(OneLinear):
    def forward(self, x):
        for _ in range(3):
            for _ in range(2):
                x = torch.relu(self.fc(x))
            x = torch.cos(x)
        return x


def test_an_inner_loop_counts_the_passes_of_all_its_runs():
    assert loops_of(OneInAnother()) == [(2, ("linear_1_1", "relu_1_2"), 6), (1, ("cos_1_3",), 3)]


class OverSeveralLines(OneLinear):
    # fmt: off
    def forward(self, x):
        for _ in range(2):
            x = self.fc(
                x,
            ).sin()
            x = (
                x + 1
            ).mT
            x = torch.cos(
                x,
            ).mT.tan()
        return x
    # fmt: on


def test_methods_and_attributes_after_several_lines_are_in_the_loop():
    layers = ("linear_1_1", "sin_1_2", "add_1_3", "mt_1_4", "cos_1_5", "mt_2_6", "tan_1_7")
    assert loops_of(OverSeveralLines()) == [(1, layers, 2)]


class InOneLoopAndOnItsOwn(OneLinear):
    def forward(self, x):
        x = self.fc(x)
        for _ in range(2):
            x = torch.sin(self.fc(x))
        return self.fc(x)


def test_passes_outside_a_loop_are_none_of_its():
    assert loops_of(InOneLoopAndOnItsOwn()) == [(2, ("linear_1_1", "sin_1_2"), 2)]


class NamesOnLaterLines(nn.Module):
    # fmt: off
    def forward(self, x):
        for _ in range(2):
            x = (
                x + 1
            ).clamp_min(0.0)
            x = (x
                 .sin()
                 .cos(
                 ))
            x = (x
                 .T) * 2
            x = torch.tanh(
                x
            )
        while (
            x.sum()
        ).abs() > 1:
            x = x * 0.5
        return x
    # fmt: on


def test_a_call_whose_name_stands_on_a_later_line_is_in_the_loop():
    model = NamesOnLaterLines()
    body = ("add_1_1", "clampmin_1_2", "sin_1_3", "cos_1_4", "t_1_5", "mul_1_6", "tanh_1_7")
    assert loops_of(model, torch.ones(2, 2)) == [(1, body, 2), (14, ("sum_1_8", "abs_1_9", "gt_1_10", "mul_2_11"), 2)]
    (reason,) = trace(model, torch.ones(2, 2)).loops[1].decided_by
    assert reason.startswith("gt_1_10, asked by while")
    assert validate(model, (torch.ones(2, 2),)).verdict


class Counts(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        while x.sum() < self.limit:
            x = x + 1
        return x


def test_the_question_of_a_while_is_no_pass_of_its_body():
    layers = ("sum_1_1", "lt_1_2", "add_1_3")
    assert loops_of(Counts(7), torch.zeros(1, 2)) == [(1, layers, 4)]
    assert loops_of(Counts(1), torch.zeros(1, 2)) == [(1, ("sum_1_1", "lt_1_2"), 1)]
    assert loops_of(Counts(-1), torch.zeros(1, 2)) == []


class OneLayerAfterAnother(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    def forward(self, x):
        for layer in self.stack:
            x = torch.relu(layer(x))
        return x


class TheStackTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = OneLayerAfterAnother()

    def forward(self, x):
        for _ in range(2):
            x = self.inner(x)
        return x


def test_a_loop_over_different_layers_is_none():
    assert loops_of(OneLayerAfterAnother()) == []
    ((line, layers, passes),) = loops_of(TheStackTwice())
    assert (line, len(layers), passes) == (1, 6, 2)


def over_rows_of_a_mask(x):
    total = x[0]
    for row in x[x[:, 0] > 0]:
        total = torch.sin(total + row)
    return total


def over_the_number_of_rows(x):
    total = x[0]
    for _ in range(x.nonzero().shape[0]):
        total = torch.sin(torch.cos(total))
    return total


def by_a_name(x):
    total = x[0]
    rows = torch.relu(x[x[:, 0] > 0])
    count = len(rows)
    for i, _ in enumerate(range(count + 1)):
        total = torch.sin(total * i)
    return total


def over_columns_of_a_mask(x):
    total = x[0]
    rows = x[x[:, 0] > 0]
    for i in range(rows.shape[1]):
        total = torch.sin(total * rows[0, i])
    return total


def over_all_rows(x):
    total = x[0]
    for row in x:
        total = torch.sin(total + row)
    return total


@pytest.mark.parametrize(
    ("function", "decided_by"),
    [
        (over_rows_of_a_mask, {"getitem"}),
        (over_the_number_of_rows, {"nonzero"}),
        (by_a_name, {"relu"}),
        (over_columns_of_a_mask, set()),
        (over_all_rows, set()),
    ],
)
def test_loops_over_as_many_rows_as_data_chose(function, decided_by):
    (loop,) = trace(Function(function), torch.ones(2, 3)).loops
    assert {said.partition("_")[0] for said in loop.decided_by if ", by its size: " in said} == decided_by
    assert loop.depends_on_data is bool(decided_by)


def adds_to_elements(x):
    for i in range(1, 3):
        x[i] += x[i - 1]
    return x


def test_what_is_added_to_an_element_is_part_of_the_loop():
    history = trace(Function(adds_to_elements), torch.ones(3, 2))
    (loop,) = history.loops
    assert "add" in [history[label].passes[0].layer_type for label in loop.layers]


class TransformInALoop(OneLinear):
    def forward(self, x):
        for _ in range(2):
            slopes = torch.func.jacrev(torch.sin)(x[0])  # several calls of PyTorch's own code from one place
            x = self.fc(x) + slopes.sum(0)
        return x


def test_calls_of_library_code_from_one_place_are_not_counted_as_passes():
    assert {passes for _, _, passes in loops_of(TransformInALoop())} == {2}
