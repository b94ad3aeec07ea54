"""Loops whose passes take different branches or skip steps, and recursive functions."""

from __future__ import annotations

import torch
from torch import nn

from tests.history.loop_programs import Programs

PROGRAMS = Programs()


@PROGRAMS.add("""sum_1:1 gt_1:1 mul_1:1 sum_1:2 gt_1:2 mul_1:2 sum_1:3 gt_1:3 mul_2:1 sum_1:4 gt_1:4 mul_1:3
    sum_1:5 gt_1:5 mul_2:2 sum_1:6 gt_1:6 mul_1:4""", lambda: (torch.tensor([3.0]),))  # fmt: skip
def a_conditional_expression_in_a_loop(x):
    for _ in range(6):
        x = x * 0.5 if x.sum() > 10 else x * 2
    return x


@PROGRAMS.add("""cos_1:1 mul_1:1 sum_1:1 gt_1:1 add_1:1 cos_1:2 mul_1:2 sum_1:2 gt_1:2 mul_2 cos_1:3 mul_1:3 sum_1:3
    gt_1:3 add_1:2""", lambda: (torch.ones(3),))  # fmt: skip
def a_condition_made_in_the_body(x):
    for limit in (9, 0, 9):
        y = torch.cos(x)
        x = y * 0.5 if (y * 2).sum() > limit else y + 1
    return x


@PROGRAMS.add("cos_1:1 cos_1:2 sin_1 cos_1:3 cos_1:4")
def a_step_in_one_pass_alone(x):
    for i in range(4):
        x = torch.cos(x)
        if i == 1:
            x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 mul_1:1 cos_1:2 mean_1 add_1 mul_1:2 cos_1:3 mul_1:3")
def several_steps_in_one_pass_alone(x):
    for i in range(3):
        x = torch.cos(x)
        if i == 1:
            x = x + x.mean()
        x = x * 2
    return x


@PROGRAMS.add("cos_1:1 sin_1 mul_1:1 cos_1:2 tan_1 mul_1:2 cos_1:3 exp_1 mul_1:3")
def another_branch_in_every_pass(x):
    for i in range(3):
        x = torch.cos(x)
        if i == 0:
            x = torch.sin(x)
        elif i == 1:
            x = torch.tan(x)
        else:
            x = torch.exp(x)
        x = x * 2
    return x


@PROGRAMS.add("cos_1 sin_1 mul_1 cos_2 tan_1 mul_2 cos_3 exp_1 mul_3 abs_1")
def another_function_in_every_pass(x):
    for function in (torch.sin, torch.tan, torch.exp):
        x = function(torch.cos(x)) * 2
    return torch.abs(x)


@PROGRAMS.add("cos_1:1 cos_1:2 sin_1:1 sin_1:2 cos_1:3")
def branches_in_no_order(x):
    for i in range(5):
        x = torch.sin(x) if i in (2, 3) else torch.cos(x)
    return x


@PROGRAMS.add("sum_1:1 gt_1:1 cos_1 sum_1:2 gt_1:2 sin_1", lambda: (torch.tensor([2.0]),))
def two_passes_with_nothing_but_the_question_in_common(x):
    for _ in range(2):
        x = torch.cos(x) if x.sum() > 0 else torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 sin_1:1 tan_1:1 cos_1:2 tan_1:2 cos_1:3 sin_1:2 tan_1:3")
def a_step_left_out_of_one_pass(x):
    for i in range(3):
        x = torch.cos(x)
        if i != 1:
            x = torch.sin(x)
        x = torch.tan(x)
    return x


@PROGRAMS.add("cos_1:1 cos_1:2 sin_1 tan_1 cos_1:3 cos_1:4 cos_1:5 cos_1:6 abs_1")
def a_step_of_the_outer_loop_left_out(x):
    for i in range(3):
        for _ in range(2):
            x = torch.cos(x)
        if i == 0:
            x = torch.tan(torch.sin(x))
    return torch.abs(x)


@PROGRAMS.add("cos_1:1 tan_1:1 sin_1 cos_1:2 sin_2:1 tan_2:1 cos_1:3 tan_1:2 cos_1:4 sin_2:2 tan_2:2")
def a_continue(x):
    for i in range(4):
        x = torch.cos(x)
        if i % 2 == 0:
            x = torch.tan(x)
            if i == 2:
                continue
            x = torch.sin(x)
        else:
            x = torch.tan(torch.sin(x))
    return x


class OneLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)


@PROGRAMS.add("linear_1:1 relu_1:1 linear_1:2 tan_1 relu_1:2 linear_1:3 relu_1:3")
class AStepInOnePass(OneLinear):
    def forward(self, x):
        for i in range(3):
            x = self.fc(x)
            if i == 1:
                x = torch.tan(x)
            x = torch.relu(x)
        return x


@PROGRAMS.add("linear_1:1 tan_1:1 relu_1:1 linear_1:2 relu_1:2 linear_1:3 tan_1:2 relu_1:3 linear_1:4 relu_1:4")
class AStepInEveryOtherPass(OneLinear):
    def forward(self, x):
        for i in range(4):
            x = self.fc(x)
            if i % 2 == 0:
                x = torch.tan(x)
            x = torch.relu(x)
        return x


@PROGRAMS.add("""linear_1:1 cos_1:1 relu_1:1 linear_1:2 sin_1:1 relu_1:2 linear_1:3 cos_1:2 relu_1:3 linear_1:4
    sin_1:2 relu_1:4""")  # fmt: skip
class BranchesBesideALayer(OneLinear):
    def forward(self, x):
        for i in range(4):
            x = self.fc(x)
            x = torch.sin(x) if i % 2 else torch.cos(x)
            x = torch.relu(x)
        return x


@PROGRAMS.add("linear_1:1 relu_1 linear_1:2 sin_1 linear_1:3 tanh_1")
class AnotherActivationInEveryPass(OneLinear):
    def forward(self, x):
        for act in (torch.relu, torch.sin, torch.tanh):
            x = act(self.fc(x))
        return x


@PROGRAMS.add("linear_1 relu_1 linear_2 tan_1 relu_2 linear_3 relu_3")
class AStepBesideDifferentLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == 1:
                x = torch.tan(x)
            x = torch.relu(x)
        return x


@PROGRAMS.add("cos_1 linear_1 relu_1 cos_2 linear_2 relu_2")
class AnotherLayerInEveryPass(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        for i in range(2):
            x = torch.cos(x)
            x = self.one(x) if i == 0 else self.two(x)
            x = torch.relu(x)
        return x


@PROGRAMS.add("linear_1:1 add_1:1 linear_2:1 sin_1:1 add_2:1 linear_1:2 add_1:2 linear_2:2 sin_1:2 add_2:2")
class AStackRunTwiceWithAStepOfItsSecondLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for _ in range(2):
            for i, layer in enumerate(self.layers):
                y = layer(x)
                if i:
                    y = torch.sin(y)
                x = x + y
        return x


# -- recursive functions and modules ---------------------------------------------------------------------------


@PROGRAMS.add("""getitem_1:1 getitem_2:1 add_1:1 tanh_1:1 getitem_1:2 getitem_2:2 add_1:2 tanh_1:2
    getitem_1:3 getitem_2:3 add_1:3 tanh_1:3""", lambda: (torch.rand(8),))  # fmt: skip
def halves(x):
    if len(x) == 1:
        return x
    half = len(x) // 2
    return halves(torch.tanh(x[:half] + x[half:]))


def _even(x, left):
    return _odd(torch.cos(x), left - 1) if left else x


def _odd(x, left):
    return _even(torch.sin(x), left - 1) if left else x


@PROGRAMS.add("cos_1:1 sin_1:1 cos_1:2 sin_1:2 cos_1:3")
def functions_that_call_each_other(x):
    return _even(x, 5)


@PROGRAMS.add("cos_1:1 cos_1:2 cos_1:3 sin_1:1 sin_1:2 sin_1:3")
def steps_before_and_after_calling_itself(x):
    def down_and_up(y, left):
        return torch.sin(down_and_up(torch.cos(y), left - 1)) if left else y

    return down_and_up(x, 3)


def _twice(function):
    def wrapper(x):
        return function(x)

    return wrapper


_inner = _twice(lambda x: torch.sin(torch.cos(x)))


@PROGRAMS.add("cos_1 sin_1 tan_1 cos_2 sin_2 exp_1")
@_twice
def a_decorator_is_no_function_that_calls_itself(x):
    x = torch.tan(_inner(x))
    return torch.exp(_inner(x))


@PROGRAMS.add("cos_1:1 getitem_1:1 cos_1:2 getitem_1:2 cos_1:3 getitem_1:3")
class CallsItself(nn.Module):
    def forward(self, x):
        return x if x.shape[-1] == 1 else self(torch.cos(x)[:, 1:])


@PROGRAMS.add("linear_1:1 tanh_1:1 linear_1:2 tanh_1:2 linear_1:3 tanh_1:3")
class CallsItselfWithParameters(OneLinear):
    def forward(self, x, left=3):
        return self(torch.tanh(self.fc(x)), left - 1) if left else x


# -- branches with parameters ----------------------------------------------------------------------------------


@PROGRAMS.add("cos_1:1 cos_1:2 linear_1:1 relu_1:1 cos_1:3 cos_1:4 linear_1:2 relu_1:2 cos_1:5")
class ALayerInEveryOtherPass(OneLinear):
    def forward(self, x):
        for i in range(5):
            x = torch.cos(x)
            if i % 2:
                x = torch.relu(self.fc(x))
        return x


@PROGRAMS.add("cos_1 linear_1 sin_1 cos_2")
class ALayerInOnePass(OneLinear):
    def forward(self, x):
        for i in range(2):
            x = torch.cos(x)
            if i == 0:
                x = torch.sin(self.fc(x))
        return x


@PROGRAMS.add("linear_1 add_1 relu_1:1 mul_1 relu_1:2 linear_2 add_2 relu_2")
class AStackWithALayerLeftOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = x * 1 if i == 1 else x + layer(x)
            x = torch.relu(x)
        return x


@PROGRAMS.add("linear_1:1 relu_1:1 linear_2:1 relu_1:2 linear_1:2 relu_1:3 linear_2:2 relu_1:4")
class TwoLayersInTurn(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        for i in range(4):
            x = torch.relu(self.two(x) if i % 2 else self.one(x))
        return x
