"""The values that decide when a loop ends, through names, calls and branches; and recursive functions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.history.loop_programs import trace
from tests.models import Function


def a_flag(x):
    done = False
    while not done:
        x = torch.cos(x) * 3
        if x.sum() > 6:
            done = True
    return x


def flags_of_rows(x):
    done, steps = [False] * len(x), 0
    while not all(done):
        x, steps = torch.cos(x) * 3, steps + 1
        for i, row in enumerate(x):
            done[i] = bool(row > -9) and steps > 1
    return x


def flags_that_are_collected(x):
    seen = []
    while len(seen) < 3:
        x = torch.cos(x) * 3
        seen.append(x.sum().item())
    return x


def a_count_by_an_if(x):
    steps = 2
    if x.sum() > 0:
        steps = 3
    for _ in range(steps):
        x = torch.cos(x) * 3
    return x


def a_count_counted_up(x):
    steps = 2
    if x.sum() > 0:
        steps += 1
    for _ in range(steps):
        x = torch.cos(x) * 3
    return x


def a_count_by_an_expression(x):
    steps = 3 if x.sum() > 0 else 2
    for _ in range(steps):
        x = torch.cos(x) * 3
    return x


def _steps(x):
    if x.sum() > 0:
        return 3
    return 2


def a_count_by_a_helper(x):
    for _ in range(_steps(x)):
        x = torch.cos(x) * 3
    return x


def _run(x, first, steps):
    for _ in range(first, steps):
        x = torch.cos(x) * 3
    return x


def a_count_for_a_helper(x):
    return _run(x, 0, int(x.sum()))


def a_count_for_a_helper_by_name(x):
    count = int(x.sum())
    return _run(x, steps=count, first=0)


class Runs(nn.Module):
    @staticmethod
    def times(steps):
        return range(steps)

    def forward(self, x, steps):
        for _ in self.times(steps):
            x = torch.cos(x) * 3
        return x


class ACountForASubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.runs = Runs()

    def forward(self, x):
        return self.runs(x, int(x.sum()))


class AnAttribute(nn.Module):
    def forward(self, x):
        self.done = False
        while not self.done:
            x = torch.cos(x) * 3
            self.look(x)
        return x

    def look(self, x):
        self.done = bool(x.sum() > 6)


def a_value_chosen_inside(x):
    for _ in range(3):
        x = torch.cos(x) * 3
        if x.sum() > 0:
            x = x + 1
    return x


def a_value_passed_on(x):
    return _run(x * int(x.sum()), 0, 3)


DECIDED = {
    a_flag: {"gt_1"},
    flags_of_rows: {"gt_1", "gt_2", "gt_3"},
    flags_that_are_collected: {"sum_1"},
    a_count_by_an_if: {"gt_1"},
    a_count_counted_up: {"gt_1"},
    a_count_by_an_expression: {"gt_1"},
    a_count_by_a_helper: {"gt_1"},
    a_count_for_a_helper: {"sum_1"},
    a_count_for_a_helper_by_name: {"sum_1"},
    ACountForASubmodule: {"sum_1"},
    AnAttribute: {"gt_1"},
    a_value_chosen_inside: set(),
    a_value_passed_on: set(),
}


@pytest.mark.parametrize(("code", "expected"), DECIDED.items(), ids=lambda it: getattr(it, "__name__", ""))
def test_what_decides_the_passes(code, expected):
    history = trace(code() if isinstance(code, type) else Function(code), torch.ones(3))
    loop = next(loop for loop in history.loops if "cos" in str(loop.layers))
    assert {said.partition(",")[0].rpartition("_")[0] for said in loop.decided_by} == expected


# -- recursive functions ---------------------------------------------------------------------------------------


def until_negative(x):
    x = torch.cos(x) * 3
    if x.sum() < 0:
        return x
    return until_negative(x)


def three_deep(x, depth=3):
    x = torch.cos(x) * 3
    return three_deep(x, depth - 1) if depth > 1 else x


class CallsItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x, depth=3):
        x = torch.cos(self.fc(x))
        if depth > 1 and x.sum() < 99:
            x = self(x, depth - 1)
        return x


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(6, 3)

    def forward(self, x):
        return self.joined((x, (x, (x, x))))

    def joined(self, node):
        if torch.is_tensor(node):
            return node
        left, right = map(self.joined, node)
        return torch.cos(self.cell(torch.cat([left, right])))


@pytest.mark.parametrize(
    ("code", "passes", "decided_by"),
    [(until_negative, 2, {"lt_1"}), (three_deep, 3, set()), (CallsItself, 3, {"lt_1"}), (Tree, 3, set())],
)
def test_a_function_that_calls_itself_is_a_loop(code, passes, decided_by):
    history = trace(code() if isinstance(code, type) else Function(code), torch.ones(3) / 2)
    (loop,) = history.loops
    first = code.forward if code is CallsItself else Tree.joined if code is Tree else code
    assert loop.source_line.endswith(f":{first.__code__.co_firstlineno}, in {first.__name__}")
    assert loop.num_passes == passes
    assert {said.partition(",")[0].rpartition("_")[0] for said in loop.decided_by} == decided_by


class Inside(nn.Module):
    """Modules of one class, one in another."""

    def __init__(self, levels):
        super().__init__()
        self.inner = Inside(levels - 1) if levels else nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inside(2)

    def forward(self, x):
        return self.inner(self.inner(x))


def test_modules_in_others_of_their_class_call_themselves_not():
    history = trace(Twice(), torch.ones(3))
    assert history.model_is_recurrent
    assert history.loops == ()


# -- how often ---------------------------------------------------------------------------------------------------


class TwiceInOneBody(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    def forward(self, x):
        for _ in range(2):
            x = self.a(self.b(self.a(x)))
        return x


class ABA(nn.Module):
    def __init__(self):
        super().__init__()
        a, b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.parts = nn.ModuleList([a, b, a])

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


@pytest.mark.parametrize(("model", "layers", "passes"), [(TwiceInOneBody, 3, 2), (ABA, 1, 3)])
def test_a_loop_ran_as_often_as_its_body(model, layers, passes):
    (loop,) = trace(model(), torch.ones(3)).loops
    assert (len(loop.layers), loop.num_passes) == (layers, passes)


def runs_once(x):
    while x.sum() > 2:
        x = torch.cos(x) * 0.1
    return x


def test_a_while_that_ran_once_makes_no_model_recurrent():
    history = trace(Function(runs_once), torch.ones(3))
    assert history["sum_1"].layer_passes_total == 2
    assert not history.model_is_recurrent
    assert trace(Function(runs_once), torch.zeros(3)).model_max_recurrent_loops == 1
