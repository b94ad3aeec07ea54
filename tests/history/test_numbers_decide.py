"""Conditions that depend on a number, on a part of a condition, or on the result of a function."""

from __future__ import annotations

import operator

import pytest
import torch

import pytest_torchlens as tl
from tests.history.loop_programs import assertions
from tests.models import Function

LIMIT = 3


def an_item(x):
    return x + 1 if x.sum().item() > 7 else x


def a_negated_int(x):
    if not int(x.sum()) > 7:
        return x
    return x + 1


def a_float_and_a_name(x):
    if float(x.sum()) > LIMIT:
        return x + 1
    return x


def a_truth_as_item(x):
    if x.isnan().any().item():
        return x + 1
    return x


def an_equal(x):
    if torch.equal(x, x * 2):
        return x + 1
    return x


def a_list(x):
    if x.tolist()[0][0] > 0:
        return x + 1
    return x


def a_name(x):
    total = x.sum().item()
    if total > 0:
        return x + 1
    return x


def a_flag_that_ends_a_loop(x):
    done = False
    while not done:
        x = x * 2
        done = bool(x.sum() > 9)
    return x


def a_name_of_another_kind(x):
    largest = x.max().item()
    x = x / largest
    if (x > 9).any():
        return x + 1
    return x


def a_chain(x):
    if 0 < x.sum() < 9:
        return x + 1
    return x


def a_chain_cut_short(x):
    if 9 < x.sum() < 99:
        return x + 1
    return x


def an_any(x):
    if any(row[0] > row[1] for row in x):
        return x + 1
    return x


def an_all(x):
    if not all(row.sum() > 99 for row in x):
        return x + 1
    return x


def an_all_of_a_list(x):
    held = [row.sum() > 1 for row in x]
    if all(held):
        return x + 1
    return x


def an_any_in_a_loop(x):
    for i in range(3):
        x = torch.relu(x) if any(row[0] > i for row in x) else torch.tanh(x)
    return x


def an_in_that_finds_nothing(x):
    if x[0, 0] in (x[1, 1] * 2, x[0, 1] * 3):
        return x + 1
    return x


def an_in(x):
    if x[0, 0] in [torch.tensor(5.0), torch.tensor(1.0)]:
        return x + 1
    return x


def a_truth_function(x):
    if operator.truth(x.sum()):
        return x + 1
    return x


def a_walrus(x):
    if (total := x.sum()) > 9 or (mean := x.mean().item()) > 9:
        return x + total + mean
    return x


def several_filters(x):
    return torch.stack([row for row in x if row.sum() if row.mean().item() > 0])


def a_match(x):
    match int(x.sum()):
        case 0:
            return x
        case 8:
            return x + 1


def cases_of_a_tensor(x):
    match x.sum():
        case 0:
            return x
        case 8:
            return x + 1


def a_guard(x):
    match x.shape:
        case (_, 4) if x.sum() > 9:
            return x
        case _:
            return x + 1


def _is_small(x):
    return bool(x.sum() < 0.1)


def a_function_that_answers(x):
    if not _is_small(x):
        return x + 1
    return x


def a_lambda_that_answers(x):
    total = lambda y: y.sum().item()  # noqa: E731
    return x + 1 if total(x) == 8 else x


def of_two(x):
    return max(x[0].sum(), x[1].mean())


def mixed(x):
    if x.isnan().any() or (x.sum().item() > 5 and not x.mean() > 9):
        return x + 1
    return x


CONDITIONS = {
    an_item: [("conditional expression", "x.sum().item() > 7", "body")],
    a_negated_int: [("if", "not int(x.sum()) > 7", "else")],
    a_float_and_a_name: [("if", "float(x.sum()) > LIMIT", "")],
    a_truth_as_item: [("if", "x.isnan().any().item()", "else")],
    an_equal: [("if", "torch.equal(x, x * 2)", "else")],
    a_list: [("if", "x.tolist()[0][0] > 0", "")],
    a_name: [("if", "total > 0", "")],
    a_flag_that_ends_a_loop: [("while", "not done", "")],
    a_name_of_another_kind: [("expression", "x.max().item()", ""), ("if", "(x > 9).any()", "else")],
    a_chain: [("if", "0 < x.sum() < 9", "undecided"), ("if", "0 < x.sum() < 9", "body")],
    a_chain_cut_short: [("if", "9 < x.sum() < 99", "else")],
    an_any: [("if", "any(row[0] > row[1] for row in x)", branch) for branch in ("undecided", "else")],
    an_all_of_a_list: [("if", "all(held)", branch) for branch in ("undecided", "body")],
    an_any_in_a_loop: [
        ("conditional expression", "any(row[0] > i for row in x)", branch)
        for branch in ("body", "undecided", "else", "undecided", "else")
    ],
    an_all: [("if", "not all(row.sum() > 99 for row in x)", "body")],
    an_in: [("if", "x[0, 0] in [torch.tensor(5.0), torch.tensor(1.0)]", branch) for branch in ("undecided", "body")],
    an_in_that_finds_nothing: [("if", "x[0, 0] in (x[1, 1] * 2, x[0, 1] * 3)", end) for end in ("undecided", "else")],
    a_truth_function: [("if", "operator.truth(x.sum())", "body")],
    a_walrus: [("if", "(total := x.sum()) > 9 or (mean := x.mean().item()) > 9", end) for end in ("undecided", "else")],
    several_filters: [
        ("comprehension filter", "row.sum()", "keeps"),
        ("comprehension filter", "row.mean().item() > 0", "keeps"),
    ]
    * 2,
    a_match: [("match", "int(x.sum())", "body")],
    cases_of_a_tensor: [("case", "0", "goes on"), ("case", "8", "body")],
    a_guard: [("case", "x.sum() > 9", "goes on")],
    a_function_that_answers: [("if", "not _is_small(x)", "body")],
    a_lambda_that_answers: [("conditional expression", "total(x) == 8", "body")],
    of_two: [("expression", "max(x[0].sum(), x[1].mean())", "")],
    mixed: [
        ("if", "x.isnan().any() or (x.sum().item() > 5 and not x.mean() > 9)", "undecided"),
        ("if", "x.isnan().any() or (x.sum().item() > 5 and not x.mean() > 9)", "undecided"),
        ("if", "x.isnan().any() or (x.sum().item() > 5 and not x.mean() > 9)", "body"),
    ],
}


def trace(forward):
    return tl.log_forward_pass(Function(forward), torch.ones(2, 4))


@pytest.mark.parametrize(("forward", "expected"), CONDITIONS.items(), ids=lambda it: getattr(it, "__name__", ""))
def test_what_it_decided(forward, expected):
    history = trace(forward)
    assert [(escape.statement, escape.condition, escape.branch) for escape in history.escapes] == expected
    assert history.model_has_conditional_branching
    asked = [op for op in history if op.is_condition]
    served = {e.operation.partition(":")[0] for e in history.escapes if e.statement != "expression"}
    assert {op.layer_label for op in asked} >= served


def written(x):
    return x + len(f"{x.sum().item():.2f}")


@pytest.mark.parametrize("forward", [assertions, written], ids=["assertions", "a number put into a text"])
def test_what_is_no_branch(forward):
    assert not trace(forward).model_has_conditional_branching


def test_assertions_are_conditions_nonetheless():
    history = trace(assertions)
    assert [(test.statement, test.condition) for test in history.truth_tests if "x." in test.condition] == [
        *(("assert", "x.sum() > 0"), ("assert", "x.mean() > 0"))
    ]
    assert [op.layer_label_short for op in history if op.in_cond_branch] == ["sum_1", "gt_1", "mean_1", "gt_2"]


def test_both_tensors_that_were_compared_serve_the_condition():
    def forward(x):
        return x if torch.allclose(torch.cos(x), torch.sin(x)) else x + 1

    assert [op.layer_label_short for op in trace(forward) if op.in_cond_branch] == ["cos_1", "sin_1"]


def test_lines_of_a_match():
    (matched,) = trace(a_match).escapes
    first = a_match.__code__.co_firstlineno
    assert matched.lines_taken == (first + 5, first + 5)
    assert matched.lines_not_taken == (first + 3, first + 3)
