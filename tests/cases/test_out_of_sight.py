"""Code that runs elsewhere or cannot be looked into: threads, transforms, scripted modules, the compiler."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.func import grad
from torch.func import vmap

from pytest_torchlens.capture import record
from pytest_torchlens.validate import validate
from tests.cases.programs import Programs
from tests.cases.programs import check
from tests.cases.programs import trace
from tests.models import Function

PROGRAMS = Programs()
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")


# -- threads ---------------------------------------------------------------------------------------------------------


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    relu_1: mul_1
    add_1: relu_1
    output_1: add_1
    """
)
def a_thread_of_its_own(x):
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.relu(x * 2)))
    thread.start()
    thread.join()
    return found[0] + 1


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    getitem_1: mul_1
    add_1: getitem_1
    add_2: mul_1 ~add_1
    output_1: add_2
    """
)
def a_write_in_a_pool(x):
    y = x * 2
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: y[:2].add_(1)).result()
    return y + 0


class Arm(nn.Module):
    def __init__(self, barrier):
        super().__init__()
        self.fc = nn.Linear(6, 2)
        self.barrier = barrier

    def forward(self, x):
        self.barrier.wait(timeout=20)
        return torch.relu(self.fc(x))


class Arms(nn.Module):
    """Two threads inside modules at the same time."""

    def __init__(self):
        super().__init__()
        barrier = threading.Barrier(2)
        self.arms = nn.ModuleList([Arm(barrier), Arm(barrier)])

    def forward(self, x):
        with ThreadPoolExecutor(2) as pool:
            left, right = pool.map(lambda arm: arm(x), self.arms)
        return left - right


def test_threads_that_run_at_once_keep_their_module_stacks_apart():
    found = validate(Arms(), (torch.rand(6),))
    assert found.verdict
    history = found.history
    where = sorted((op.layer_type, op.containing_module_origin) for op in history if op.func_applied_name)
    assert where == [
        ("linear", "arms.0.fc"),
        ("linear", "arms.1.fc"),
        ("relu", "arms.0"),
        ("relu", "arms.1"),
        ("sub", None),
    ]
    assert {op.layer_type for op in history if history["sub_1"].layer_label in op.child_layers} == {"relu"}


def test_a_thread_that_outlives_the_pass_is_not_recorded_any_more():
    go, results = threading.Event(), []

    def late(x):
        go.wait(20)
        results.append(x + 1)

    def forward(x):
        results.append(threading.Thread(target=late, args=(x,)))
        results[0].start()
        return x * 2

    recording = record(Function(forward), (torch.ones(2),))
    go.set()
    results[0].join()
    assert [call.info.name for call in recording.calls] == ["mul"]
    assert results[1].tolist() == [2, 2]


# -- transforms ------------------------------------------------------------------------------------------------------


class Holder:
    def __init__(self, tensor):
        self.tensors = {"weight": tensor}


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    expand_1: input_1
    vmap_1: mul_1 expand_1
    output_1: vmap_1
    """
)
def vmap_over_an_attribute(x):
    held = Holder(x * 2)
    return vmap(lambda row: row * held.tensors["weight"].sum())(x.expand(3, 6))


@PROGRAMS.add(
    """
    input_1
    sum_1: input_1
    expand_1: input_1
    vmap_1: sum_1 expand_1
    output_1: vmap_1
    """
)
def vmap_over_a_partial(x):
    return vmap(functools.partial(lambda factor, row: row * factor, x.sum()))(x.expand(3, 6))


@PROGRAMS.add(
    """
    input_1
    exp_1: input_1
    expand_1: input_1
    vmap_1: exp_1 expand_1
    output_1: vmap_1
    """
)
def vmap_over_a_function_in_a_function(x):
    y = x.exp()

    def inner(row):
        return row + y + torch.zeros(6)

    return vmap(lambda row, twice=inner: twice(row))(x.expand(2, 6))


@PROGRAMS.add(
    """
    input_1
    grad_1: input_1 $score.weight $score.bias
    output_1: grad_1
    """,
    mode="grad",
)
class SlopeOfAModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(6, 1)

    def forward(self, x):
        return grad(lambda v: torch.tanh(self.score(v)).sum())(x)


def test_steps_and_modules_inside_a_transform_are_noted():
    _, history = trace(PROGRAMS["SlopeOfAModule"], "grad")
    (call,) = history.recording.calls
    assert call.info.steps == ("linear", "tanh", "sum")
    assert [module.address for module in history.recording.module_calls] == ["", "score"]


# -- scripted and compiled code --------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.norm(x) * self.scale


@PROGRAMS.add(
    """
    input_1
    expand_1: input_1
    buffer_1
    buffer_2
    buffer_3
    scaled_1: buffer_1 buffer_2 buffer_3 expand_1 $inner.scale $inner.norm.weight $inner.norm.bias
    add_1: buffer_1 ~scaled_1
    output_1: scaled_1
    output_2: add_1
    """
)
class ScriptedInTraining(nn.Module):
    """What a scripted module writes to its running mean is read afterwards."""

    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(Scaled())

    def forward(self, x):
        y = self.inner(x.expand(3, 6))
        return y, self.inner.norm.running_mean + 0


@torch.compile(backend="eager")
def compiled(x):
    return torch.relu(x * 2) + 1


def test_a_compiled_function_is_recorded():
    found = validate(Function(lambda x: compiled(x) * 2), (torch.rand(4),))
    assert found.verdict
    assert [op.layer_type for op in found.history if op.func_applied_name] == ["mul", "relu", "add", "mul"]


@PROGRAMS.add(
    """
    input_1
    sum_1: input_1
    gt_1: sum_1
    mul_1: input_1
    output_1: mul_1
    """
)
def branch_of_cond(x):
    return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))


# -- subclasses ------------------------------------------------------------------------------------------------------


class Listening(torch.Tensor):
    heard: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.heard.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("keep", ["none", "all"])
def test_a_subclass_hears_the_model_and_not_us(keep):
    model = Function(lambda x: torch.relu(x * 2).add_(1).sum())
    x = torch.rand(4).as_subclass(Listening)
    Listening.heard.clear()
    record(model, (x,), keep=keep)
    assert Listening.heard == ["mul", "relu", "add_", "sum"]


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
