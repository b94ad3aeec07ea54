"""Code that runs elsewhere or cannot be looked into: threads, transforms, scripted modules, the compiler."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import threading
import weakref
from collections import UserDict
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
    assert recording.unseen == [f"thread {results[0].name!r} went on after the pass: what it did then was not recorded"]


class KeepsItsPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = None

    def forward(self, x):
        self.pool = self.pool or ThreadPoolExecutor(1)
        return self.pool.submit(lambda: torch.relu(x) * 2).result()


def test_a_pool_that_the_model_keeps_holds_nothing_of_the_recording():
    model = KeepsItsPool()
    recording = record(model, (torch.ones(2),), keep="all")
    held = [weakref.ref(recording), *(weakref.ref(call.outputs[0].tensor) for call in recording.calls)]
    assert len(held) == 3
    del recording
    gc.collect()
    assert [thing() for thing in held] == [None] * 3
    model.pool.shutdown()


def test_transforms_in_many_threads_keep_what_they_reached():
    weights = [torch.full((3,), float(i)) for i in range(24)]
    results = [None] * 24

    def work(i):
        for _ in range(4):
            results[i] = vmap(lambda row: row * weights[i])(x)

    def forward(x):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.stack(results)

    x = torch.ones(2, 3)
    found = validate(Function(forward), (x,))
    assert found, found.verdict
    calls = [call for call in found.history.recording.calls if call.info.name == "vmap"]
    assert [len(call.args[0]) for call in calls] == [1] * 96


POOLS = []


@torch.library.custom_op("lens_tests::relu_in_a_pool", mutates_args=())
def relu_in_a_pool(x: torch.Tensor) -> torch.Tensor:
    return POOLS[-1].submit(torch.relu, x).result(20)


def test_an_operator_may_wait_for_a_thread_of_the_model():
    def forward(x):
        with ThreadPoolExecutor(1) as pool:
            POOLS.append(pool)
            pool.submit(torch.exp, x).result(20)
            return relu_in_a_pool(x)

    names = [call.info.name for call in record(Function(forward), (torch.ones(2),)).calls]
    assert sorted(names) == ["exp", "relu", "relu_in_a_pool"]


def test_a_thread_that_cannot_start_is_left_as_it_was():
    left = []

    def forward(x):
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="threads can only be started once"):
            thread.start()
        left.append("run" in vars(thread))
        return x * 2

    record(Function(forward), (torch.ones(2),))
    assert left == [False]


def test_a_thread_that_an_operator_started_is_out_of_sight_later():
    def forward(x):
        with ThreadPoolExecutor(1) as pool:
            POOLS.append(pool)
            return relu_in_a_pool(x) + pool.submit(torch.exp, x).result(20)

    failures = (
        validate(Function(forward), (torch.ones(2),), parts=["completeness"]).verdict.part("completeness").failures
    )
    assert [failure.operation for failure in failures] == ["add_1_2"]


# -- custom functions that leave torch -------------------------------------------------------------------------------


class Pair:
    def __init__(self, one, other):
        self.one, self.other = one, other


class SlottedPair:
    __slots__ = ("one", "other")

    def __init__(self, one, other):
        self.one, self.other = one, other


@dataclasses.dataclass(frozen=True)
class FrozenPair:
    one: torch.Tensor
    other: torch.Tensor


class ProductOfAPair(torch.autograd.Function):
    """Works in NumPy on tensors that it finds in an object."""

    @staticmethod
    def forward(ctx, pair):
        one, other = (pair["one"], pair["other"]) if isinstance(pair, UserDict) else (pair.one, pair.other)
        return torch.from_numpy(one.detach().numpy() * other.detach().numpy())


@pytest.mark.parametrize("kind", [Pair, SlottedPair, FrozenPair, lambda one, other: UserDict(one=one, other=other)])
def test_tensors_in_objects_are_parents(kind):
    model = Function(lambda x: ProductOfAPair.apply(kind(x * 2, x + 1)) + 1)
    found = validate(model, (torch.ones(3),))
    assert found, found.verdict
    parents = [found.history[label].layer_type for label in found.history["productofapair_1"].parent_layers]
    assert parents == ["mul", "add"]


class CountsItsCalls(torch.autograd.Function):
    """Its write to a counter is no way from its input to its output, which goes by Python."""

    count = torch.zeros(1)

    @staticmethod
    def forward(ctx, x):
        CountsItsCalls.count.add_(1)
        return torch.tensor((x * 2).tolist())


def test_a_write_inside_a_custom_function_hides_no_parent():
    found = validate(Function(lambda x: CountsItsCalls.apply(x) + 1), (torch.ones(3),))
    assert found, found.verdict
    assert "input_1_0" in found.history["countsitscalls_1"].parent_layers


class FillsByPointer(torch.autograd.Function):
    """Stands for a kernel of a C++ extension, which writes to memory that it is given."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        doubled = [2 * value for value in (ctypes.c_float * x.numel()).from_address(x.data_ptr())]
        (ctypes.c_float * x.numel()).from_address(out.data_ptr())[:] = doubled
        return out


def test_memory_filled_out_of_sight_makes_the_function_an_operation():
    found = validate(Function(lambda x: FillsByPointer.apply(x) + 1), (torch.arange(1.0, 4.0),))
    assert found, found.verdict
    assert found.history["fillsbypointer_1"].parent_layers == ("input_1_0",)


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


class AddsUp(nn.Module):
    """In evaluation too it writes to its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x):
        self.total.add_(x)
        return x * 2


@PROGRAMS.add(
    """
    input_1
    buffer_1
    addsup_1: buffer_1 input_1
    add_1: addsup_1 buffer_1 ~addsup_1
    output_1: add_1
    """
)
class ScriptedInEvaluation(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(AddsUp()).eval()

    def forward(self, x):
        y = self.inner(x)
        return y + self.inner.total


@torch.jit.script
def halved_in_place(x: torch.Tensor):
    x.div_(2)
    return x + 1


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    halvedinplace_1: mul_1
    add_1: mul_1 ~halvedinplace_1 halvedinplace_1
    output_1: add_1
    """,
    mode="no_grad",
)
def a_scripted_function_writes_its_argument(x):
    y = x * 2
    return y + halved_in_place(y)


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    vmap_1: mul_1
    add_1: mul_1 ~vmap_1 vmap_1
    output_1: add_1
    """,
    mode="no_grad",
)
def vmap_that_writes(x):
    y = x * 2
    z = vmap(lambda row: row.add_(1) * 3)(y)
    return y + z


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
