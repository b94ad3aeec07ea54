"""PyTorch's wrappers around a model, and lazy layers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed
from torch import nn

from pytest_torchlens.validate import validate
from tests.capture.programs import Programs
from tests.capture.programs import check
from tests.models import Function

PROGRAMS = Programs()


def net():
    return nn.Sequential(nn.Linear(6, 3), nn.ReLU())


GRAPH = """
    input_1
    linear_1: input_1 $module.0.weight $module.0.bias
    relu_1: linear_1
    output_1: relu_1
    """


@PROGRAMS.add(GRAPH)
class InDataParallel(nn.DataParallel):
    """On a machine without GPU it calls the module itself."""

    def __init__(self):
        super().__init__(net())


@PROGRAMS.add(GRAPH, mode="grad")
class InDistributedDataParallel(nn.parallel.DistributedDataParallel):
    """One process, over gloo."""

    def __init__(self):
        super().__init__(net())


@pytest.fixture(autouse=True)
def process_group(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@PROGRAMS.add(
    """
    input_1
    kaiminguniform_1: $fc.weight
    uniform_1: $fc.bias
    linear_1: input_1 kaiminguniform_1 uniform_1 $fc.weight $fc.bias
    tanh_1: linear_1
    output_1: tanh_1
    """
)
class LearnsItsShape(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.LazyLinear(2)

    def forward(self, x):
        torch.manual_seed(0)
        return torch.tanh(self.fc(x))


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)


class LearnsItsStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.LazyLinear(3)
        self.norm = nn.LazyBatchNorm1d()

    def forward(self, x):
        return self.norm(self.fc(x))


def test_lazy_buffers_are_made_under_the_trace():
    found = validate(LearnsItsStatistics(), (torch.rand(4, 6),), seed=0)
    assert found.verdict
    assert found.history["batchnorm_1"].parent_layers[0] == "linear_1_3"


def test_tensors_that_were_copied_before_are_no_parents_of_a_copy():
    def forward(x, y):
        first, second = copy.deepcopy((x.detach(), y.detach()))
        return first + second

    found = validate(Function(forward), (torch.rand(3), torch.rand(3)))
    assert found.verdict
    assert found.history["deepcopy_2"].parent_layers == ("detach_2_3",)
