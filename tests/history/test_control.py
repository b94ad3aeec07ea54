"""Truth tests, branches, and loops that depend on data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from tests.history.loop_programs import an_assert
from tests.history.loop_programs import layers_of
from tests.history.loop_programs import trace
from tests.models import Function


def line(function, offset):
    """Return the number of a line of a function, counted from its ``def`` as 0."""
    return function.__code__.co_firstlineno + offset


def an_if(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def an_else(x):
    if x.sum() > 99:
        x = x + 1
    elif x.sum() > 0:
        x = x * 2
    else:
        x = x - 1
    return x


def a_while(x):
    while x.sum() < 20:
        x = x * 2
    return x


def an_and(x):
    both = x.sum() > 0 and x.mean()
    return x * both


def an_or(x):
    one = x.sum() > 99 or x.mean()
    return x * one


def a_conditional_expression(x):
    return x + 1 if x.sum() > 99 else x - 1


def a_filter(x):
    return torch.stack([row for row in x if row.sum() > 3])


def a_not(x):
    return x + (not x.sum() > 0)


def an_if_of_two(x):
    if x.sum() > 0 and not x.mean() > 99:
        return x + 1
    return x - 1


def an_item(x):
    if x.sum().item() > 0:
        return x + 1
    return x - 1


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (an_if, [("if", "x.sum() > 0", True, "body")]),
        (an_else, [("if", "x.sum() > 99", False, "else"), ("if", "x.sum() > 0", True, "body")]),
        (a_while, [("while", "x.sum() < 20", True, "goes on"), ("while", "x.sum() < 20", False, "ends")]),
        (an_assert, [("assert", "x.sum() > 0", True, "holds")]),
        (an_and, [("and", "x.sum() > 0 and x.mean()", True, "goes on")]),
        (an_or, [("or", "x.sum() > 99 or x.mean()", False, "goes on")]),
        (a_conditional_expression, [("conditional expression", "x.sum() > 99", False, "else")]),
        (
            a_filter,
            [
                ("comprehension filter", "row.sum() > 3", False, "drops"),
                ("comprehension filter", "row.sum() > 3", True, "keeps"),
            ],
        ),
        (a_not, [("not", "not x.sum() > 0", True, "False")]),
        (
            an_if_of_two,
            [
                ("if", "x.sum() > 0 and not x.mean() > 99", True, "undecided"),
                ("if", "x.sum() > 0 and not x.mean() > 99", False, "body"),
            ],
        ),
        (an_item, [("if", "x.sum().item() > 0", 10.0, "body")]),
    ],
)
def test_statement_value_and_branch(function, expected):
    history = trace(Function(function), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert [(e.statement, e.condition, e.value, e.branch) for e in history.escapes] == expected
    assert all(e.source_line.startswith(f"{function.__code__.co_filename}:") for e in history.escapes)


def test_the_line_and_the_operation_that_was_asked():
    history = trace(Function(an_else), torch.ones(2))
    first, second = history.truth_tests
    assert (first.operation, second.operation) == ("gt_1_2", "gt_2_4")
    assert first.source_line == f"{__file__}:{line(an_else, 1)}, in an_else"
    assert second.source_line == f"{__file__}:{line(an_else, 3)}, in an_else"
    assert history.model_has_conditional_branching


def test_lines_taken_and_not_taken():
    history = trace(Function(an_else), torch.ones(2))
    # the `elif` is in the `else` of the first `if`, which was taken; the branch that the `elif` skips was not
    assert history.lines_taken[__file__] == [line(an_else, i) for i in (3, 4, 5)]
    assert history.lines_not_taken[__file__] == [line(an_else, i) for i in (2, 6)]


def test_lines_of_a_body_that_one_pass_takes_and_another_does_not():
    history = trace(Function(a_while), torch.ones(4))
    assert history.lines_taken == {__file__: [line(a_while, 2)]}
    assert history.lines_not_taken == {}


def test_what_serves_the_condition_alone():
    def forward(x):
        y = torch.cos(x)
        scale = y.mean()
        if (scale * 2).abs() > 0:
            y = y * scale
        return y

    history = trace(Function(forward), torch.ones(2))
    marked = [op.layer_label_short for op in history if op.in_cond_branch]
    assert marked == ["mul_1", "abs_1", "gt_1"]
    assert [op.layer_label_short for op in history if op.is_condition] == ["gt_1"]
    assert history["gt_1"].is_terminal_bool_layer


def test_without_conditions_nothing_is_marked():
    history = trace(Function(lambda x: torch.cos(x) > 0), torch.ones(2))
    assert not history.model_has_conditional_branching
    assert not any(op.in_cond_branch or op.is_condition for op in history)


def test_a_condition_without_source():
    space = {}
    exec("def forward(x):\n    return x + 1 if x.sum() > 0 else x", space)  # noqa: S102 - code of no file
    history = trace(Function(space["forward"]), torch.ones(2))
    (test,) = history.truth_tests
    assert (test.operation, test.value, test.statement, test.condition) == ("gt_1_2", True, "expression", "")
    assert history["gt_1"].in_cond_branch


# -- loops -----------------------------------------------------------------------------------------------------


def fixed(x):
    for _ in range(3):
        x = torch.sin(torch.cos(x))
    return x


def until_small(x):
    while x.abs().max() > 0.1:
        x = x / 2
    return x


def broken_off(x):
    for _ in range(100):
        x = torch.tanh(x) / 2
        if x.abs().max().item() < 0.1:
            break
    return x


def counted_by_data(x):
    steps = int(x.sum())
    count = steps + 1
    for _ in range(count):
        x = torch.sin(torch.cos(x))
    return x


def returned_from(x):
    while True:
        x = torch.tanh(x) / 2
        if x.abs().max() < 0.1:
            return x


def asked_elsewhere(x):
    while not small(x):
        x = torch.tanh(x) / 2
    return x


def small(x):
    return bool(x.abs().max() < 0.1)


def with_a_branch_inside(x):
    for _ in range(3):
        x = torch.sin(x)
        x = torch.cos(x) if x.sum() > 0 else torch.tan(x)
    return x


@pytest.mark.parametrize(
    ("function", "passes", "decided_by"),
    [
        (fixed, 3, []),
        (with_a_branch_inside, 3, []),
        (until_small, 4, ["gt_1"]),
        (broken_off, 3, ["max_1"]),
        (counted_by_data, 3, ["sum_1"]),
        (returned_from, 3, ["lt_1"]),
        (asked_elsewhere, 3, ["lt_1"]),
    ],
)
def test_whether_data_decide_the_passes(function, passes, decided_by):
    history = trace(Function(function), torch.tensor([1.0, 1.0]))
    (loop,) = history.loops
    body = [op for op in history if op.layer_type in ("div", "cos", "sin")]
    assert max(op.layer_passes_total for op in body) == passes
    assert loop.depends_on_data is bool(decided_by)
    assert [said.rpartition("_")[0] for said in (s.partition(",")[0] for s in loop.decided_by)] == decided_by


class Steps(nn.Module):
    """A cell that runs over time."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(2, 2)

    def forward(self, x):
        for _ in range(3):
            x = torch.relu(self.cell(x))
        return x


def test_the_loop_around_a_module():
    history = trace(nn.Sequential(Steps()), torch.ones(1, 2))
    (loop,) = history.loops
    assert loop.source_line == f"{__file__}:{line(Steps.forward, 1)}, in forward"
    assert loop.layers == ("linear_1_1", "relu_1_2")
    assert (loop.num_passes, loop.depends_on_data) == (3, False)


def test_a_while_condition_is_one_layer_from_its_first_time_on():
    history = trace(Function(until_small), torch.tensor([1.0]))
    once = "abs_1:{0} max_1:{0} gt_1:{0}"
    expected = " ".join(f"{once.format(i)} div_1:{i}" for i in (1, 2, 3, 4)) + " " + once.format(5)
    assert layers_of(history) == expected.split()


def test_record_with_conditions_and_loops_goes_to_json_and_back():
    record = trace(Function(broken_off), torch.ones(2)).record()
    assert record.loops
    assert record.escapes
    assert from_json(to_json(record), HistoryRecord) == record


# -- two passes as one graph -----------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        h = torch.cos(x)
        if x.sum() > 0:
            h = torch.relu(self.fc(h))
            h = h + 1
        else:
            h = torch.tanh(h)
        return h * 2


def test_both_branches_in_one_graph():
    model = Branching()
    up, down = tl.log_forward_pass(model, torch.ones(1, 2)), tl.log_forward_pass(model, -torch.ones(1, 2))
    merged = up.merge(down)
    assert [op.operation.layer_type for op in merged.operations] == [
        *("input", "cos", "sum", "gt", "tanh", "linear", "relu", "add", "mul", "output")
    ]
    assert merged.only_first == ("linear_1_4", "relu_1_5", "add_1_6")
    assert merged.only_second == ("tanh_1_4",)
    parents = [merged.operations[number].operation.layer_type for number, _ in merged.operations[8].edges]
    assert sorted(parents) == ["add", "tanh"]


def test_the_text_of_both_branches():
    model = Branching()
    up, down = trace(model, torch.ones(1, 2)), trace(model, -torch.ones(1, 2))
    assert repr(up.merge(down)) == (
        "<MergedGraph: 10 operations, 6 run by both passes, 3 (linear_1_4, relu_1_5, add_1_6) by the first alone, "
        "1 (tanh_1_4) by the second alone>"
    )
    assert "9 run by both passes, 0 by the first alone, 0 by the second alone" in repr(up.merge(up))


def test_passes_of_different_models_are_not_merged():
    one, other = trace(Branching(), torch.ones(1, 2)), trace(nn.ReLU(), torch.ones(2))
    with pytest.raises(ValueError, match="expected two passes of one model, got Branching and ReLU"):
        one.merge(other)
