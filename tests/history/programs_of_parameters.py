"""Parameters used several times, and their neighbours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.history.loop_programs import Programs

PROGRAMS = Programs()


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
    """The decoder uses the transposed weight: it is a different layer from the encoder."""

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


@PROGRAMS.add(
    "zeros_1 zeros_2 lstm_1:1 lstm_2:1 lstm_3:1 lstm_1:2 lstm_2:2 lstm_3:2 add_1", lambda: (torch.rand(3, 1, 4),)
)
class LSTMTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x):
        x, (h, c) = self.lstm(x)
        x, (h2, _) = self.lstm(x, (h, c))
        return x + h2


@PROGRAMS.add(
    "zeros_1 unbind_1 unbind_2 unbind_3 rnntanhcell_1:1 rnntanhcell_1:2 rnntanhcell_1:3", lambda: (torch.rand(3, 1, 4),)
)
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
    """Like a deep equilibrium model: z = tanh(W z + U x) until it converges."""

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
    """A gate over a state that is a buffer at first."""

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


class Generator(nn.Module):
    """Nothing that it computes descends from its input."""

    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(4, 4)
        self.start, self.state = nn.Parameter(torch.ones(1, 4)), nn.Parameter(torch.ones(1, 4))


@PROGRAMS.add("zeros_1 rnntanhcell_1:1 rnntanhcell_1:2 rnntanhcell_1:3")
class FromZerosAndALearnedToken(Generator):
    def forward(self, x):
        h, y = torch.zeros(1, 4), self.start
        for _ in range(3):
            h = y = self.cell(y, h)
        return y


@PROGRAMS.add("rnntanhcell_1:1 rnntanhcell_1:2 rnntanhcell_1:3")
class FromLearnedTokensAlone(Generator):
    def forward(self, x):
        h, y = self.state, self.start
        for _ in range(3):
            h = y = self.cell(y, h)
        return y


@PROGRAMS.add("zeros_1 rnntanhcell_1:1 rnntanhcell_1:2 add_1")
class BesideWhatDescendsFromTheInput(Generator):
    def forward(self, x):
        h, y = torch.zeros(1, 4), self.start
        for _ in range(2):
            h = y = self.cell(y, h)
        return x + y


@PROGRAMS.add(
    "unbind_1 unbind_2 rnntanhcell_1:1 rnntanhcell_1:2",
    lambda: (torch.rand(2, 1, 4),),
)
class LearnedFirstState(Generator):
    """The initial state that the first pass reads is not a weight of its layer."""

    def forward(self, x):
        h = self.state
        for step in x.unbind(0):
            h = self.cell(step, h)
        return h


class Cayley(OneLinear):
    """Two sums of one made weight, with opposite factors."""

    def made_weight(self):
        skew = self.fc.weight - self.fc.weight.T
        eye = torch.eye(4)
        return torch.linalg.solve(torch.add(eye, skew, alpha=-0.5), torch.add(eye, skew, alpha=0.5))


@PROGRAMS.add("t_1 sub_1 eye_1 add_1 add_2 linalgsolve_1 linear_1")
class CayleyOnce(Cayley):
    def forward(self, x):
        return F.linear(x, self.made_weight())


class ThreeNetworks(nn.Module):
    """Transforms of one state whose coefficients come from networks of their own."""

    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])


@PROGRAMS.add(
    "linear_1 chunk_1 chunk_2 chunk_3 chunk_4 exp_1 mul_1 add_1 cat_1 "
    "linear_2 chunk_5 chunk_6 chunk_7 chunk_8 exp_2 mul_2 add_2 cat_2 "
    "linear_3 chunk_9 chunk_10 chunk_11 chunk_12 exp_3 mul_3 add_3 cat_3"
)
class CouplingTransforms(ThreeNetworks):
    def forward(self, x):
        context = x
        for net in self.nets:
            scale, shift = net(context).chunk(2, -1)
            first, second = x.chunk(2, -1)
            x = torch.cat([first * scale.exp() + shift, second], -1)
        return x


@PROGRAMS.add("linear_1 linear_2 linear_3 exp_1 mul_1 exp_2 mul_2 exp_3 mul_3")
class CoefficientsMadeBefore(ThreeNetworks):
    def forward(self, x):
        for scale in [net(x) for net in self.nets]:
            x = torch.exp(x) * scale
        return x


@PROGRAMS.add("linear_1 linear_2 linear_3 tanh_1 add_1 tanh_2 add_2")
class FeaturePyramid(ThreeNetworks):
    def forward(self, x):
        laterals = [net(x) for net in self.nets]
        for i in (2, 1):
            laterals[i - 1] = laterals[i - 1] + torch.tanh(laterals[i])
        return laterals[0]


@PROGRAMS.add(
    "linear_1 chunk_1 chunk_2 neg_1 neg_2 tanh_1 cat_1 add_1 sin_1 "
    "linear_2 chunk_3 chunk_4 neg_3 neg_4 tanh_2 cat_2 add_2 sin_2"
)
class TransformsBesideAnInnerLoop(ThreeNetworks):
    """Inner loops that other networks feed are not the passes of one loop, with the transforms as its detours."""

    def forward(self, x):
        for net in self.nets[:2]:
            shift, scale = tuple(-part for part in net(x).chunk(2, -1))
            x = torch.sin(torch.tanh(x) + torch.cat([shift, scale], -1))
        return x


@PROGRAMS.add("mul_1 linear_1 mul_2 linear_2 tanh_1 add_1 mul_3 linear_3 mul_4 linear_4 tanh_2 add_2")
class MaskedNetworks(nn.Module):
    """Weights that are masked in each network are not the passes of one loop, with the transforms as its detours."""

    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList([nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(2)])
        self.register_buffer("mask", torch.ones(4, 4).tril())

    def forward(self, x):
        for net in self.nets:
            h = x
            for layer in net:
                h = F.linear(h, layer.weight * self.mask, layer.bias)
            x = torch.tanh(x) + h
        return x


@PROGRAMS.add("linear_1 exp_1:1 mul_1:1 exp_1:2 mul_1:2 exp_1:3 mul_1:3")
class OneNetworkForAllPasses(OneLinear):
    def forward(self, x):
        scale = self.fc(x)
        for _ in range(3):
            x = torch.exp(x) * scale
        return x


@PROGRAMS.add("linear_1 linear_2 add_1:1 tanh_1:1 add_1:2 tanh_1:2 add_1:3 tanh_1:3")
class TwoStepsBack(nn.Module):
    """The two first states come from two networks; the second pass reads one of them at another place."""

    def __init__(self):
        super().__init__()
        self.fc, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        before = self.fc(x)
        x = self.fc2(before)
        for _ in range(3):
            x, before = torch.tanh(x + before), x
        return x
