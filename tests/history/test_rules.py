"""The three rules of what is one layer, on models of a few lines with their layers written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.history.loop_programs import Nested
from tests.history.loop_programs import Programs
from tests.history.loop_programs import build
from tests.history.loop_programs import layers_of
from tests.history.loop_programs import trace

PROGRAMS = Programs()

# -- loops without parameters ----------------------------------------------------------------------------------


@PROGRAMS.add("cos_1:1 relu_1:1 mul_1:1 cos_1:2 relu_1:2 mul_1:2 cos_1:3 relu_1:3 mul_1:3")
def xyz_as_a_loop(x):
    for _ in range(3):
        x = torch.relu(torch.cos(x)) * 2
    return x


@PROGRAMS.add("cos_1:1 relu_1:1 mul_1:1 cos_1:2 relu_1:2 mul_1:2 cos_1:3 relu_1:3 mul_1:3")
def xyz_written_out(x):
    x = torch.relu(torch.cos(x)) * 2
    x = torch.relu(torch.cos(x)) * 2
    return torch.relu(torch.cos(x)) * 2


@PROGRAMS.add("cos_1:1 relu_1:1 mul_1:1 cos_1:2 relu_1:2 mul_1:2 tan_1 cos_2 relu_2 mul_2")
def figure_3b(x):
    x = torch.relu(torch.cos(x)) * 2
    x = torch.relu(torch.cos(x)) * 2
    x = torch.tan(x)
    return torch.relu(torch.cos(x)) * 2


@PROGRAMS.add("cos_1 relu_1 mul_1 tan_1 cos_2 relu_2 mul_2 sin_1 cos_3 relu_3 mul_3")
def xyz_apart_written_out(x):
    x = torch.tan(torch.relu(torch.cos(x)) * 2)
    x = torch.sin(torch.relu(torch.cos(x)) * 2)
    return torch.relu(torch.cos(x)) * 2


@PROGRAMS.add("cos_1 relu_1 mul_1 tan_1 cos_2 relu_2 mul_2 sin_1 cos_3 relu_3 mul_3 exp_1")
def xyz_apart_in_a_loop(x):
    for between in (torch.tan, torch.sin, torch.exp):
        x = between(torch.relu(torch.cos(x)) * 2)
    return x


@PROGRAMS.add("add_1 add_2", inputs=lambda: (torch.rand(2), torch.rand(2), torch.rand(2)))
def three_summands(a, b, c):
    return a + b + c


@PROGRAMS.add("cos_1 sin_1 tan_1 add_1 add_2 add_3")
def builtin_sum(x):
    return sum([torch.cos(x), torch.sin(x), torch.tan(x)])


@PROGRAMS.add("relu_1:1 relu_1:2 relu_1:3")
def one_operation_in_a_loop(x):
    for _ in range(3):
        x = torch.relu(x)
    return x


@PROGRAMS.add("relu_1 relu_2 relu_3")
def one_operation_written_out(x):
    x = torch.relu(x)
    x = torch.relu(x)
    return torch.relu(x)


@PROGRAMS.add("getitem_1:1 getitem_2:1 add_1:1 div_1:1 getitem_1:2 getitem_2:2 add_1:2 div_1:2")
def tensors_that_shrink(x):
    for _ in range(2):
        x = (x[:, :-1] + x[:, 1:]) / 2
    return x


@PROGRAMS.add("mul_1:1 cos_1:1 mul_1:2 cos_1:2 mul_1:3 cos_1:3")
def a_scalar_that_changes(x):
    for i in range(3):
        x = torch.cos(x * i)
    return x


@PROGRAMS.add("mul_1 cos_1 mul_2 cos_2")
def a_scalar_that_changes_written_out(x):
    x = torch.cos(x * 2)
    return torch.cos(x * 3)


@PROGRAMS.add("cos_1:1 sin_1:1 cos_1:2 sin_1:2 cos_1:3")
def cut_short_by_a_condition(x):
    for i in range(3):
        x = torch.cos(x)
        if i == 2:
            break
        x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 cos_1:2 sin_1:1 cos_1:3 cos_1:4 sin_1:2")
def a_step_in_every_other_pass(x):
    for i in range(4):
        x = torch.cos(x)
        if i % 2:
            x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 cos_1:2 sin_1:1 cos_1:3 cos_1:4 sin_1:2 cos_1:5 cos_1:6 sin_1:3")
def a_loop_in_a_loop(x):
    for _ in range(3):
        for _ in range(2):
            x = torch.cos(x)
        x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 sin_1:1 cos_1:2 cos_1:3 sin_1:2 cos_1:4 cos_1:5 cos_1:6 sin_1:3")
def an_inner_loop_of_growing_length(x):
    for i in range(3):
        for _ in range(i + 1):
            x = torch.cos(x)
        x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 cos_1:2 cos_1:3 sin_1:1 sin_1:2 sin_1:3")
def two_loops_in_a_row(x):
    for _ in range(3):
        x = torch.cos(x)
    for _ in range(3):
        x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 sin_1:1 cos_1:2 sin_1:2 tan_1 cos_2:1 sin_2:1 cos_2:2 sin_2:2")
def a_loop_again_after_something_else(x):
    for _ in range(2):
        x = torch.sin(torch.cos(x))
    x = torch.tan(x)
    for _ in range(2):
        x = torch.sin(torch.cos(x))
    return x


@PROGRAMS.add("cos_1:1 sin_1:1 cos_1:2 sin_1:2 tan_1:1 cos_1:3 sin_1:3 cos_1:4 sin_1:4 tan_1:2")
def a_loop_in_a_loop_written_out(x):
    x = torch.sin(torch.cos(x))
    x = torch.sin(torch.cos(x))
    x = torch.tan(x)
    x = torch.sin(torch.cos(x))
    x = torch.sin(torch.cos(x))
    return torch.tan(x)


@PROGRAMS.add("cos_1:1 cos_2:1 sin_1:1 cos_1:2 cos_2:2 sin_1:2")
def a_step_twice_in_a_body_written_out(x):
    x = torch.sin(torch.cos(torch.cos(x)))
    return torch.sin(torch.cos(torch.cos(x)))


SEAM = """cos_1:1 sin_1:1 tan_1:1 cos_2:1 sin_2:1 cos_1:2 sin_1:2 tan_1:2 cos_2:2 sin_2:2
cos_1:3 sin_1:3 tan_1:3 cos_2:3 sin_2:3"""


@PROGRAMS.add(SEAM)
def a_body_that_ends_as_it_begins(x):
    for _ in range(3):
        x = torch.sin(torch.cos(x))
        x = torch.tan(x)
        x = torch.sin(torch.cos(x))
    return x


@PROGRAMS.add(SEAM)
def a_body_that_ends_as_it_begins_written_out(x):
    x = torch.sin(torch.cos(torch.tan(torch.sin(torch.cos(x)))))
    x = torch.sin(torch.cos(torch.tan(torch.sin(torch.cos(x)))))
    return torch.sin(torch.cos(torch.tan(torch.sin(torch.cos(x)))))


@PROGRAMS.add("cos_1:1 sin_1:1 mul_1:1 cos_1:2 sin_1:2 mul_1:2")
def branches_in_a_body(x):
    for _ in range(2):
        x = torch.cos(x) * torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 cos_2:1 mul_1:1 cos_1:2 cos_2:2 mul_1:2")
def equal_branches_in_a_body(x):
    for _ in range(2):
        x = torch.cos(x) * torch.cos(x)
    return x


@PROGRAMS.add("cos_1 cos_2 mul_1")
def equal_branches(x):
    return torch.cos(x) * torch.cos(x)


@PROGRAMS.add("chunk_1 chunk_2 cos_1 sin_1 cos_2 sin_2 cat_1")
def equal_branches_of_a_comprehension(x):
    return torch.cat([torch.sin(torch.cos(part)) for part in x.chunk(2, 1)])


@PROGRAMS.add("chunk_1 chunk_2 cos_1:1 sin_1:1 cos_2:1 sin_2:1 cos_1:2 sin_1:2 cos_2:2 sin_2:2 cat_1")
def two_streams_in_one_loop(x):
    parts = x.chunk(2, 1)
    for _ in range(2):
        parts = [torch.sin(torch.cos(part)) for part in parts]
    return torch.cat(parts)


@PROGRAMS.add("cos_1:1 mean_1:1 sin_1:1 cos_1:2 mean_1:2 sin_1:2 cos_1:3 mean_1:3 sin_1:3 stack_1")
def side_outputs(x):
    means = []
    for _ in range(3):
        x = torch.cos(x)
        means.append(x.mean())
        x = torch.sin(x)
    return x, torch.stack(means)


@PROGRAMS.add(
    "zeros_1 unbind_1 unbind_2 unbind_3 add_1:1 tanh_1:1 add_1:2 tanh_1:2 add_1:3 tanh_1:3", lambda: (torch.rand(3, 2),)
)
def over_time(x):
    state = torch.zeros(2)
    for step in x.unbind(0):
        state = torch.tanh(step + state)
    return state


@PROGRAMS.add("cos_1:1 add_1:1 cos_1:2 add_1:2 cos_1:3 add_1:3")
def the_input_in_every_pass(x):
    state = x
    for _ in range(3):
        state = torch.cos(state) + x
    return state


@PROGRAMS.add("cos_1:1 cos_1:2 cos_1:3")
def a_function_that_calls_itself(x):
    def again(y, left):
        return again(torch.cos(y), left - 1) if left else y

    return again(x, 3)


@PROGRAMS.add("newzeros_1 cos_1 cos_2 add_1")
def a_loop_over_a_constant(x):
    mask = x.new_zeros(4)
    for _ in range(2):
        mask = torch.cos(mask)
    return x + mask


@PROGRAMS.add("mul_1 add_1 cos_1:1 cos_1:2 add_2 cos_2", lambda: (torch.rand(2),))
def a_loop_between_equal_steps(x):
    y = x * 2 + 1
    for _ in range(2):
        y = torch.cos(y)
    return torch.cos(y + 1)


# -- modules ---------------------------------------------------------------------------------------------------


@PROGRAMS.add("relu_1 relu_2")
class TwoActivations(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.ReLU(), nn.ReLU()

    def forward(self, x):
        return self.second(self.first(x))


@PROGRAMS.add("relu_1:1 relu_1:2")
class OneActivationTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.act(x))


@PROGRAMS.add("relu_1 relu_2 relu_3")
class ActivationsInALoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.acts = nn.ModuleList(nn.ReLU() for _ in range(3))

    def forward(self, x):
        for act in self.acts:
            x = act(x)
        return x


@PROGRAMS.add("relu_1 relu_2")
class ActivationsNotRegistered(nn.Module):
    def forward(self, x):
        x = nn.ReLU()(x)
        return nn.ReLU()(x)


@PROGRAMS.add("linear_1 relu_1 linear_2 relu_2")
class ActivationSharedByLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.two(self.act(self.one(x))))


@PROGRAMS.add("linear_1 add_1 linear_2 add_2")
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = x + self.a(x)
        return h + self.b(h)


@PROGRAMS.add("linear_1 add_1 linear_2 add_2 linear_3 add_3")
class ResidualsInALoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@PROGRAMS.add("linear_1 add_1 linear_2 add_2 linear_3 add_3")
class SumOfBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        total = 0
        for layer in self.layers:
            total = total + layer(x)
        return total


@PROGRAMS.add("linear_1 linear_2 relu_1 add_1 linear_3 relu_2 add_2 linear_4 relu_3 add_3")
class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        last = self.layers[0](x)
        for layer in self.layers[1:]:
            beside = layer(x)
            last = beside + torch.relu(last)
        return last


@PROGRAMS.add("linear_1:1 add_1:1 linear_2:1 add_2:1 linear_1:2 add_1:2 linear_2:2 add_2:2")
class StackRunTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for _ in range(2):
            for layer in self.layers:
                x = x + layer(x)
        return x


# -- parameters ------------------------------------------------------------------------------------------------


class OneLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)


@PROGRAMS.add("linear_1:1 add_1:1 mul_1:1 linear_1:2 add_1:2 mul_1:2 linear_1:3 add_1:3 mul_1:3")
class SimpleRecurrent(OneLinear):
    def forward(self, x):
        for _ in range(3):
            x = self.fc(x) + 1
            x = x * 2
        return x


@PROGRAMS.add("cos_1:1 linear_1:1 add_1:1 sin_1 cos_1:2 linear_1:2 add_1:2 tan_1")
class Figure3A(OneLinear):
    def forward(self, x):
        x = self.fc(torch.cos(x)) + 1
        x = torch.sin(x)
        x = self.fc(torch.cos(x)) + 1
        return torch.tan(x)


@PROGRAMS.add("linear_1:1 linear_1:2")
class LinearTwice(OneLinear):
    def forward(self, x):
        return self.fc(self.fc(x))


@PROGRAMS.add("linear_1:1 relu_1:1 mul_1 linear_1:2 relu_1:2 add_1")
class Siamese(OneLinear):
    def forward(self, x):
        return torch.relu(self.fc(x)) + torch.relu(self.fc(2 * x))


@PROGRAMS.add("linear_1:1 relu_1 linear_1:2 tanh_1 linear_1:3")
class OtherNeighbours(OneLinear):
    def forward(self, x):
        return self.fc(torch.tanh(self.fc(torch.relu(self.fc(x)))))


@PROGRAMS.add("linear_1:1 relu_1:1 linear_1:2 tan_1 linear_1:3 relu_1:2")
class NeighbourOfSomePasses(OneLinear):
    def forward(self, x):
        x = torch.relu(self.fc(x))
        x = torch.tan(self.fc(x))
        return torch.relu(self.fc(x))


@PROGRAMS.add("linear_1:1 mean_1:1 linear_1:2 mean_1:2 linear_1:3 mean_1:3 stack_1")
class SideOutputOfALayer(OneLinear):
    def forward(self, x):
        means = []
        for _ in range(3):
            x = self.fc(x)
            means.append(x.mean())
        return x, torch.stack(means)


@PROGRAMS.add("linear_1:1 relu_1:1 relu_1:2 linear_1:2 relu_1:3 relu_1:4")
class InnerLoopBesideALayer(OneLinear):
    def forward(self, x):
        for _ in range(2):
            x = self.fc(x)
            for _ in range(2):
                x = torch.relu(x)
        return x


@PROGRAMS.add("linear_1:1 cos_1:1 cos_2:1 add_1:1 linear_1:2 cos_1:2 cos_2:2 add_1:2")
class EqualBranchesBesideALayer(OneLinear):
    def forward(self, x):
        for _ in range(2):
            x = self.fc(x)
            x = torch.cos(x) + torch.cos(x)
        return x


@PROGRAMS.add("linear_1:1 relu_1:1 linear_2:1 linear_1:2 relu_1:2 linear_2:2 linear_2:3")
class LoopsThatShareALayer(OneLinear):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(2):
            x = self.out(torch.relu(self.fc(x)))
        return self.out(x)


@PROGRAMS.add("linear_1 relu_1 t_1 linear_2")
class TiedAutoEncoder(OneLinear):
    """The decoder works on the transposed weight: another layer than the encoder."""

    def forward(self, x):
        return F.linear(torch.relu(self.fc(x)), self.fc.weight.t())


@PROGRAMS.add("linear_1:1 relu_1 linear_1:2 sigmoid_1")
class OneWeightForBoth(OneLinear):
    def forward(self, x):
        return torch.sigmoid(self.fc(torch.relu(self.fc(x))))


@PROGRAMS.add("conv2d_1:1 mul_1 conv2d_1:2 add_1", lambda: (torch.rand(1, 2, 5, 5),))
class ParallelConvolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3)

    def forward(self, x):
        return self.conv(x) + self.conv(x * 2)


@PROGRAMS.add("conv2d_1:1 conv2d_1:2 add_1", lambda: (torch.rand(1, 2, 5, 5),))
class ParallelStrides(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2, 2, 3, 3))

    def forward(self, x):
        return F.conv2d(x, self.weight, padding=1) + F.conv2d(x, self.weight, padding=2, dilation=2)


@PROGRAMS.add("t_1 matmul_1:1 t_2 matmul_1:2")
class WeightMadeEachTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))

    def forward(self, x):
        for _ in range(2):
            x = x @ self.weight.t()
        return x


@PROGRAMS.add("getitem_1 mul_1 getitem_2 mul_2")
class RowsOfOneParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.Parameter(torch.rand(2))

    def forward(self, x):
        for i in range(2):
            x = x * self.scales[i]
        return x


@PROGRAMS.add("zeros_1 zeros_2 lstm_1:1 lstm_2:1 lstm_3:1 lstm_1:2 lstm_2:2 lstm_3:2 add_1", lambda: (torch.rand(3, 1, 4),))
class LSTMTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x):
        x, (h, c) = self.lstm(x)
        x, (h2, _) = self.lstm(x, (h, c))
        return x + h2


@PROGRAMS.add("zeros_1 unbind_1 unbind_2 unbind_3 rnntanhcell_1:1 rnntanhcell_1:2 rnntanhcell_1:3", lambda: (torch.rand(3, 1, 4),))
class RNNOverTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(4, 4)

    def forward(self, x):
        h = torch.zeros(1, 4)
        for step in x.unbind(0):
            h = self.cell(step, h)
        return h


@PROGRAMS.add(
    "getitem_1:1 zeros_1 lstmcell_1:1 lstmcell_2:1 linear_1:1 getitem_1:2 lstmcell_1:2 lstmcell_2:2 linear_1:2 stack_1",
    lambda: (torch.rand(2, 1, 4),),
)
class LSTMOverTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        state, outs = None, []
        for t in range(len(x)):
            state = self.cell(x[t], state)
            outs.append(self.out(state[0]))
        return torch.stack(outs)


@PROGRAMS.add("linear_1 zeros_1 add_1:1 tanh_1:1 linear_2:1 add_1:2 tanh_1:2 linear_2:2 add_1:3 tanh_1:3")
class FixedPoint(nn.Module):
    """Like a deep equilibrium model: z = tanh(W z + U x) until it stands still."""

    def __init__(self):
        super().__init__()
        self.inject, self.again = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        u, z = self.inject(x), torch.zeros(1, 4)
        for i in range(3):
            z = torch.tanh(u + z)
            if i < 2:
                z = self.again(z)
        return z


@PROGRAMS.add(
    """conv2d_1 conv2d_2:1 add_1:1 relu_1:1 conv2d_3:1 relu_2:1 conv2d_2:2 add_1:2 relu_1:2 conv2d_3:2 relu_2:2
    mean_1 linear_1""",
    lambda: (torch.rand(1, 3, 6, 6),),
)
class LikeCORnet(nn.Module):
    """A block that runs several times with a skip connection from its input."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.act, self.head = nn.ReLU(), nn.Linear(4, 2)

    def forward(self, x):
        x = skip = self.stem(x)
        for _ in range(2):
            x = torch.relu(self.conv1(x) + skip)
            x = torch.relu(self.conv2(x))
        return self.head(x.mean((2, 3)))


@PROGRAMS.add(
    """zeros_1 unbind_1 unbind_2 linear_1:1 linear_2:1 add_1:1 tanh_1:1 linear_1:2 linear_2:2 add_1:2 tanh_1:2""",
    lambda: (torch.rand(2, 1, 4),),
)
class ElmanCell(nn.Module):
    """The first pass works on a constant state."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = torch.zeros(1, 4)
        for step in x.unbind(0):
            h = torch.tanh(self.w(step) + self.u(h))
        return h


@PROGRAMS.add(
    """linear_1:1 sigmoid_1:1 linear_2:1 sigmoid_2:1 mul_1:1 linear_1:2 sigmoid_1:2 linear_2:2 sigmoid_2:2 mul_1:2
    add_1""",
    lambda: (torch.rand(2, 1, 4),),
)
class GateOfABuffer(nn.Module):
    """A gate over a state that is a buffer first."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("state", torch.ones(1, 4))

    def forward(self, x):
        h = self.state
        for _ in range(2):
            h = torch.sigmoid(self.w(h)) * torch.sigmoid(self.u(x))
        return h + x


@PROGRAMS.add("linear_1:1 rand_1 add_1:1 linear_1:2 rand_2 add_1:2")
class NoiseInEveryPass(OneLinear):
    def forward(self, x):
        for _ in range(2):
            x = self.fc(x) + torch.rand(4)
        return x


@pytest.mark.parametrize("name", PROGRAMS)
def test_layers(name):
    program = PROGRAMS[name]
    assert layers_of(trace(build(program.code), *program.inputs())) == program.layers.split()


@pytest.mark.parametrize("name", PROGRAMS)
def test_layers_three_modules_deep(name):
    program = PROGRAMS[name]
    deep = Nested(build(program.code), 3)
    assert layers_of(trace(deep, *program.inputs())) == program.layers.split()


def in_sequence(program):
    return nn.Sequential(build(program.code))


ONE_INPUT = [name for name in PROGRAMS if len(PROGRAMS[name].inputs()) == 1]


@pytest.mark.parametrize("name", ONE_INPUT)
def test_layers_in_a_sequential(name):
    program = PROGRAMS[name]
    assert layers_of(trace(in_sequence(program), *program.inputs())) == program.layers.split()
