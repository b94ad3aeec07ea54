"""State that forward changes, random numbers, memory: a traced run leaves the same as one plain run."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from pytest_torchlens.capture import record
from tests.capture.programs import Programs
from tests.capture.programs import Twice
from tests.capture.programs import check
from tests.capture.programs import trace
from tests.models import Function

PROGRAMS = Programs()


def rows():
    return (torch.tensor([[1.0, 10.0], [3.0, 30.0]]),)


@PROGRAMS.add(
    """
    input_1
    detach_1: $fc.weight
    asstrided_1: detach_1
    mul_1: asstrided_1
    linear_1: input_1 ~mul_1 $fc.weight $fc.bias
    output_1: linear_1
    """
)
class WeightsInABlockUnregistered(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 2)
        self.flat = self.fc.weight.data.view(12)

    def forward(self, x):
        self.flat.mul_(2)
        return self.fc(x)


class FreesItsWeights(nn.Module):
    """As sharded training does between calls."""

    def __init__(self):
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(6))
        self.flat.untyped_storage().resize_(0)

    def forward(self, x):
        self.flat.untyped_storage().resize_(24)
        with torch.no_grad():
            self.flat.copy_(torch.arange(6.0))
        y = x * self.flat
        self.flat.untyped_storage().resize_(0)
        return y


PROGRAMS.add(
    """
    input_1
    arange_1
    copy_1: arange_1 $flat
    mul_1: input_1 copy_1 $flat
    output_1: mul_1
    """,
    mode="no_grad",
)(FreesItsWeights)


@PROGRAMS.add(
    """
    input_1
    buffer_1
    buffer_2
    batchnorm_1: input_1 buffer_1 buffer_2 $frozen.weight $frozen.bias
    buffer_3
    buffer_4
    batchnorm_2: batchnorm_1 buffer_3 buffer_4 $live.weight $live.bias
    dropout_1: batchnorm_2
    output_1: dropout_1
    """,
    inputs=rows,
)
class PartlyFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.live, self.drop = nn.BatchNorm1d(2), nn.BatchNorm1d(2), nn.Dropout(0.5)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)
        self.frozen.eval()

    def forward(self, x):
        self.steps = self.steps + 1
        return self.drop(self.live(self.frozen(x)))


@PROGRAMS.add(
    """
    input_1
    buffer_1
    buffer_2
    setitem_1: buffer_1 buffer_2 input_1
    getitem_1: setitem_1
    sum_1: getitem_1
    output_1: sum_1
    """,
    inputs=lambda: (torch.tensor([[2.0, 3.0]]),),
)
class CacheWithAPosition(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.ones(1, 4, 2))
        self.register_buffer("position", torch.ones((), dtype=torch.long))

    def forward(self, key):
        self.cache[:, self.position] = key
        self.position.add_(1)
        return self.cache[:, : int(self.position)].sum(1)


@PROGRAMS.add(
    """
    input_1
    buffer_1
    lerp_1: buffer_1 input_1
    sub_1: input_1 lerp_1
    output_1: sub_1
    """
)
class MovingAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        return x - self.mean.lerp_(x, 0.1)


@PROGRAMS.add(
    """
    input_1
    mul_1: $weight
    mul_2: input_1 mul_1 $weight
    output_1: mul_2
    """
)
class DecayedWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0))

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.5)
        return x * self.weight


@PROGRAMS.add(
    """
    input_1
    flatten_1: $fc.parametrizations.weight.original
    buffer_1
    mv_1: flatten_1 buffer_1 $fc.parametrizations.weight.original
    norm_1: mv_1
    clampmin_1: norm_1
    expandas_1: clampmin_1 mv_1
    buffer_2
    div_1: mv_1 expandas_1 buffer_2
    h_1: flatten_1 $fc.parametrizations.weight.original
    mv_2: h_1 div_1
    norm_2: mv_2
    clampmin_2: norm_2
    expandas_2: clampmin_2 mv_2
    div_2: mv_2 expandas_2 buffer_1
    clone_1: div_1
    clone_2: div_2
    mv_3: flatten_1 clone_2 $fc.parametrizations.weight.original
    vdot_1: clone_1 mv_3
    div_3: flatten_1 vdot_1 $fc.parametrizations.weight.original
    linear_1: input_1 div_3 $fc.bias
    output_1: linear_1
    """,
    inputs=rows,
)
class SpectralNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = parametrizations.spectral_norm(nn.Linear(2, 3))

    def forward(self, x):
        return self.fc(x)


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    linear_1: input_1 $odd.fc.weight
    stack_1: mul_1
    sum_1: stack_1
    add_1: linear_1 sum_1
    output_1: add_1
    """,
    inputs=rows,
)
class CountsItsCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.even, self.odd = Twice(), Twice()
        self.calls = 0
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.seen.append(x * self.calls)
        return (self.odd if self.calls % 2 else self.even)(x) + torch.stack(self.seen).sum(0)


@PROGRAMS.add(
    """
    input_1
    full_1
    linear_1: input_1 $fc.fc.weight
    mul_1: linear_1 full_1
    output_1: mul_1
    """,
    inputs=rows,
)
class ParameterMadeInForward(nn.Module):
    scale = None

    def __init__(self):
        super().__init__()
        self.fc = Twice()

    def forward(self, x):
        if self.scale is None:
            self.register_buffer("seen", torch.zeros(1))
            self.scale = torch.full((2,), 3.0)
        self.seen += 1
        return self.fc(x) * self.scale


@PROGRAMS.add(
    """
    input_1
    linear_1: input_1 $fc.fc.weight
    add_1: linear_1
    output_1: add_1
    """,
    inputs=rows,
)
class CannotBeCopied(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = Twice()
        self.lock = threading.Lock()
        self.rule = lambda t: t + 1

    def forward(self, x):
        with self.lock:
            return self.rule(self.fc(x))


def test_the_next_plain_run_goes_on_from_there():
    model, _ = trace(PROGRAMS["CountsItsCalls"], "grad")
    assert (model.calls, len(model.seen)) == (1, 1)
    model(*rows())
    assert (model.calls, len(model.seen)) == (2, 2)


def test_a_model_of_another_model_may_be_traced():
    trunk = Twice()
    outer = nn.Sequential(trunk, nn.Tanh())
    fired = []
    trunk.register_forward_pre_hook(lambda module, args: fired.append(type(module).__name__))
    assert record(trunk, rows()).output.shape == outer(*rows()).shape
    assert fired == ["Twice", "Twice"]


def test_two_threads_record_at_once():
    barrier = threading.Barrier(2)
    found = {}

    def forward(x):
        barrier.wait(timeout=10)
        y = x * 2
        barrier.wait(timeout=10)
        return y + 1

    def work(name):
        found[name] = [call.info.layer_type for call in record(Function(forward), (torch.ones(2),)).calls]

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": ["mul", "add"], "b": ["mul", "add"]}


def test_recordings_repeat_themselves():
    counts = [len(trace(PROGRAMS["SpectralNormed"], "grad")[1]) for _ in range(3)]
    assert len(set(counts)) == 1


@pytest.mark.parametrize("keep", ["none", "all"])
def test_nothing_outlives_its_recording(keep):
    model, x = Twice(), torch.ones(1, 2)
    alive = [weakref.ref(thing) for thing in (model, model.fc.weight, x)]
    recording = record(model, (x,), keep=keep)
    recording.output.sum().backward()
    del model, x, recording
    assert [ref() for ref in alive] == [None] * 3


def test_intermediates_die_during_a_recording_that_keeps_none():
    alive = []

    def forward(x):
        y = x * 2
        ref = weakref.ref(y)
        y = y + 1
        alive.append(ref())
        return y

    record(Function(forward), (torch.ones(2),))
    assert alive == [None]


class ZeroesItsPaddingRow(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 6))

    def forward(self, x):
        with torch.no_grad():
            self.weight[0].mul_(2)
        return x @ self.weight


PROGRAMS.add(
    """
    input_1
    getitem_1: $weight
    mul_1: getitem_1
    matmul_1: input_1 ~mul_1 $weight
    output_1: matmul_1
    """
)(ZeroesItsPaddingRow)


@PROGRAMS.add(
    """
    input_1
    mul_1: $first
    mul_2: input_1 mul_1 $first
    sum_1: ~mul_1 $flat
    add_1: mul_2 sum_1
    output_1: add_1
    """,
    inputs=lambda: (torch.ones(3),),
)
class ParametersInOneBlock(nn.Module):
    """A write to one parameter shows in another, which is read only later."""

    def __init__(self):
        super().__init__()
        self.flat = nn.Parameter(torch.arange(6.0))
        self.first = nn.Parameter(self.flat.detach()[:3])

    def forward(self, x):
        with torch.no_grad():
            self.first.mul_(2)
        return x * self.first + self.flat.sum()


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
