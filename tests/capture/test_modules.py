"""Modules shared, reused, wrapped, replaced and called in unusual ways: each call is counted for its module."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.capture.programs import Programs
from tests.capture.programs import Twice
from tests.capture.programs import assert_saved
from tests.capture.programs import check
from tests.capture.programs import trace

PROGRAMS = Programs()


def pairs():
    return (torch.arange(1.0, 5.0).view(2, 2),)


@PROGRAMS.add(
    """
    input_1
    linear_1:1: input_1 $fc.weight
    linear_1:2: linear_1:1 $fc.weight
    output_1: linear_1:2
    """,
    inputs=pairs,
)
class LayerTwiceInARow(Twice):
    def forward(self, x):
        return self.fc(self.fc(x))


@PROGRAMS.add(
    """
    input_1
    linear_1:1: input_1 $there.weight
    t_1: $there.weight
    linear_2: linear_1:1 t_1 $back.bias
    linear_1:2: linear_2 $there.weight
    output_1: linear_1:2
    """,
    inputs=pairs,
)
class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.there = nn.Linear(2, 3, bias=False)
        self.back = nn.Linear(3, 2)
        self.probe = nn.Linear(2, 3, bias=False)
        self.probe.weight = self.there.weight

    def forward(self, x):
        return self.probe(nn.functional.linear(self.there(x), self.there.weight.t(), self.back.bias))


@PROGRAMS.add(
    """
    input_1
    linear_1:1: input_1 $first.core.fc.weight
    add_1: linear_1:1
    linear_1:2: add_1 $first.core.fc.weight
    add_2: linear_1:2
    output_1: add_2
    """,
    inputs=pairs,
)
class HiddenCore(nn.Module):
    """Two holders of one core; the second keeps it outside the module tree."""

    class Holder(nn.Module):
        def forward(self, x):
            return self.core(x) + 1

    def __init__(self):
        super().__init__()
        core = Twice()
        self.first, self.second = self.Holder(), self.Holder()
        self.first.core = core
        object.__setattr__(self.second, "core", core)

    def forward(self, x):
        return self.second(self.first(x))


@PROGRAMS.add(
    """
    input_1
    linear_1:1: input_1 $fc.weight
    linear_1:2: linear_1:1 $fc.weight
    output_1: linear_1:2
    """,
    inputs=pairs,
)
class Recursive(Twice):
    def forward(self, x, depth=2):
        return self(self.fc(x), depth - 1) if depth else x


@PROGRAMS.add(
    """
    input_1
    linear_1: input_1 $blocks.1.fc.weight
    constant_1
    linear_2: linear_1 constant_1
    linear_3: linear_2 $blocks.0.fc.weight
    output_1: linear_3
    """,
    inputs=pairs,
)
class UnregisteredLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Twice() for _ in range(2))
        self.loose = {"extra": Twice()}

    def forward(self, x):
        for block in self.blocks[1:]:
            x = block(x)
        return nn.Sequential(*self.blocks[:1])(self.loose["extra"](x))


@PROGRAMS.add(
    """
    input_1
    matmul_1: input_1 $mix.0
    add_1: matmul_1
    matmul_2: input_1 $mix.1
    add_2: add_1 matmul_2
    add_3: add_2 $named.used
    output_1: add_3
    """,
    inputs=pairs,
)
class ParameterContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.ParameterList([torch.ones(2, 2), torch.eye(2)])
        self.named = nn.ParameterDict({"used": torch.ones(2), "unused": torch.ones(7)})

    def forward(self, x):
        return sum(x @ weight for weight in self.mix) + self.named["used"]


@PROGRAMS.add(
    """
    input_1
    weightnorm_1: $fc.parametrizations.weight.original1 $fc.parametrizations.weight.original0
    linear_1: input_1 weightnorm_1 $fc.bias
    output_1: linear_1
    """,
    inputs=pairs,
)
class WeightNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = parametrizations.weight_norm(nn.Linear(2, 2))

    def forward(self, x):
        return self.fc(x)


CALLS = {
    "LayerTwiceInARow": {"": 1, "fc": 2},
    "TiedWeights": {"": 1, "there": 1, "probe": 1},
    "HiddenCore": {"": 1, "first": 1, "first.core": 2, "first.core.fc": 2, "second": 1},
    "Recursive": {"": 3, "fc": 2},
    "WeightNormed": {"": 1, "fc": 1, "fc.parametrizations.weight": 1, "fc.parametrizations.weight.0": 1},
}


@pytest.mark.parametrize("name", CALLS)
def test_module_calls(name):
    _, history = trace(PROGRAMS[name], "grad")
    counts = {module.address: module.num_passes for module in history.record().modules}
    assert {address: count for address, count in counts.items() if count} == CALLS[name]


def test_results_of_each_call_are_kept_apart():
    _, history = trace(PROGRAMS["LayerTwiceInARow"], "no_grad")
    assert_saved(history, **{"linear_1:1": 20, "linear_1:2": 40})
    assert [history[key].pass_num for key in ("fc:1", "fc:2")] == [1, 2]
    assert len(history["fc"]) == 2


def test_used_and_unused_parameters():
    _, history = trace(PROGRAMS["ParameterContainers"], "grad")
    read = {name for op in history for name in op.parent_param_addresses}
    assert set(history.recording.parameters) - read == {"named.unused"}


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
