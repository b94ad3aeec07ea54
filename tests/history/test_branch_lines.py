"""Lines taken by nested conditions, and values that are followed through names."""

from __future__ import annotations

import pytest
import torch

import pytest_torchlens as tl
from pytest_torchlens.history.control_flow import conditions
from tests.models import Function


def an_if_in_an_if(x):
    if x.sum() > -100:
        x = x + 1
        if x.sum() > 1000:
            x = x * 2
            x = x * 3
        x = x + 5
    return x


def a_chain(x):
    if x.sum() > 100:
        x = x + 1
    elif x.sum() > 50:
        x = x + 2
    elif x.sum() > 0:
        x = x + 3
    else:
        x = x + 4
    return x


def an_if_in_a_while(x):
    while x.sum() < 100:
        x = x * 2
        if x.sum() > 50:
            x = x + 1
        else:
            x = x + 2
            x = x + 3
    return x


def an_if_in_a_body_passed_by(x):
    if x.sum() > 100:
        if x.sum() > 0:
            x = x + 1
        x = x + 2
    return x


def taken_once_of_twice(x):
    for limit in (-100, 1000):
        if x.sum() > limit:
            x = x + 1
            if x.sum() > limit + 2000:
                x = x + 2
    return x


def a_conditional_expression_in_an_if(x):
    if x.sum() > 0:
        x = (
            x + 1
            if x.sum() > 100
            else x + 2
        )  # fmt: skip
    return x


@pytest.mark.parametrize(
    ("function", "taken", "left"),
    [
        (an_if_in_an_if, [2, 3, 6], [4, 5]),
        (a_chain, [3, 5, 6, 7], [2, 4, 8]),
        (an_if_in_a_while, [2, 3, 4, 5, 6, 7], []),
        (an_if_in_a_body_passed_by, [], [2, 3, 4]),
        (taken_once_of_twice, [3, 4], [5]),
        (a_conditional_expression_in_an_if, [2, 4, 5, 6], [3]),
    ],
)
def test_the_innermost_branch_decides_a_line(function, taken, left):
    history = tl.log_forward_pass(Function(function), torch.ones(2, 4))
    first = function.__code__.co_firstlineno
    assert [line - first for line in history.lines_taken.get(__file__, [])] == taken
    assert [line - first for line in history.lines_not_taken.get(__file__, [])] == left


def a_value_passed_on(x):
    n0 = x.sum().item()
    n1 = n0 if x.requires_grad else n0 + 0
    n2 = n1 if x.requires_grad else n1 + 0
    n3 = n2 if x.requires_grad else n2 + 0
    n4 = n3 if x.requires_grad else n3 + 0
    n5 = n4 if x.requires_grad else n4 + 0
    return x + 1 if n5 > 0 else x


def test_a_value_passed_on_is_followed_once(monkeypatch):
    followed = []
    carry = conditions.carry
    monkeypatch.setattr(conditions, "carry", lambda node, value: (followed.append(node), carry(node, value))[1])
    (escape,) = tl.log_forward_pass(Function(a_value_passed_on), torch.ones(2, 4)).escapes
    assert (escape.statement, escape.condition) == ("conditional expression", "n5 > 0")
    assert len(followed) < 20


def a_match_of_three(x):
    match int(x.sum()):
        case 0:
            x = x + 1
        case 8:
            x = x + 2
        case _:
            x = x + 3
            x = x + 4
    return x


def test_each_other_case_of_a_match_is_left_out():
    history = tl.log_forward_pass(Function(a_match_of_three), torch.ones(2, 4))
    first = a_match_of_three.__code__.co_firstlineno
    assert history.lines_taken[__file__] == [first + 5]
    assert history.lines_not_taken[__file__] == [first + line for line in (3, 7, 8)]
