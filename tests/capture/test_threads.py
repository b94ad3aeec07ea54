"""Code that runs in threads that the model starts."""

from __future__ import annotations

import _thread
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.func import vmap

from pytest_torchlens.capture import record
from pytest_torchlens.validate import validate
from tests.capture.programs import Programs
from tests.capture.programs import check
from tests.models import Function

PROGRAMS = Programs()
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")


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


@PROGRAMS.add(
    """
    input_1
    exp_1: input_1
    mul_1: exp_1
    output_1: mul_1
    """
)
def a_thread_by_its_low_name(x):
    done, found = threading.Event(), []
    _thread.start_new_thread(lambda: (found.append(x.exp()), done.set()), ())
    done.wait()
    return found[0] * 3


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


class Aliasing(nn.Module):
    def forward(self, x):
        y = x * 1
        return torch.from_numpy(y.numpy()) + 1


class AliasingInAThread(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Aliasing()

    def forward(self, x):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.inner, x).result()


def test_views_found_by_their_memory_belong_to_the_module_that_read_them():
    with torch.no_grad():
        calls = record(AliasingInAThread(), (torch.ones(3),)).calls
    assert [(call.info.layer_type, call.module.address) for call in calls] == [
        ("mul", "inner"),
        ("as_strided", "inner"),
        ("add", "inner"),
    ]


@pytest.mark.parametrize(("function", "maker"), [(torch.detach, ""), (torch.neg, "aten::neg")])
def test_what_passes_a_tensor_on_is_not_its_maker(function, maker):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones, 1).result()  # the thread is older than the recording, which does not see it

        def forward(x):
            made = pool.submit(torch.relu, x).result()
            with torch._C.DisableTorchFunction():
                made = function(made)
            return x + made

        sources = record(Function(forward), (torch.ones(3),), watch=True).sources
    assert [(source.kind, source.maker) for source in sources[1:]] == [("constant", maker)]


def test_operations_that_the_dispatcher_runs_in_threads_of_the_model_are_counted():
    def forward(x):
        with ThreadPoolExecutor(1) as pool:
            y = pool.submit(torch.sin, x).result()
        return y.cos()

    assert record(Function(forward), (torch.ones(3),), watch=True).num_dispatched == 2


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
    assert recording.untraced == [
        f"thread {results[0].name!r} went on after the pass: what it did then was not recorded"
    ]


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


def test_a_thread_that_cannot_start_is_restored():
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


def test_a_thread_that_an_operator_started_is_not_recorded_later():
    def forward(x):
        with ThreadPoolExecutor(1) as pool:
            POOLS.append(pool)
            return relu_in_a_pool(x) + pool.submit(torch.exp, x).result(20)

    failures = (
        validate(Function(forward), (torch.ones(2),), parts=["completeness"]).verdict.part("completeness").failures
    )
    assert [failure.operation for failure in failures] == ["add_1_2"]


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
