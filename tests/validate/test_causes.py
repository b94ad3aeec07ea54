"""A failure names its cause only if something shows it: each cause has a test, and one where it is only present."""

from __future__ import annotations

import copy
import ctypes
import itertools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from pytest_torchlens.validate.other_threads import TensorsSeen
from tests.models import Function

X = torch.rand(2, 4) + 1


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if isinstance(result, torch.Tensor) else result


class Casting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})).to(torch.float64)


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class DoublingFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if isinstance(result, torch.Tensor) else result


class CountingFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Hidden(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))


def without_functions(func, args, kwargs):
    with torch._C.DisableTorchFunction():
        return func(*args, **(kwargs or {}))


class Calling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return without_functions(func, args, kwargs)


def under(mode, function):
    def forward(x):
        with mode():
            y = function(x)
        return y + 1

    return forward


def overwrite(tensor):
    ctypes.memset(tensor.data_ptr(), 0, tensor.element_size())


def overwritten(x):
    y = x * 2
    overwrite(y)
    return y.sin()


def overwritten_under_a_mode(x):
    y = x * 2
    overwrite(y)
    with Counting():
        return y.sin()


def overwritten_before_a_draw(x):
    y = x * 2
    overwrite(y)
    return torch.normal(y, 1.0)


_DRAWS = itertools.count()


@torch.library.custom_op("lens_causes::unsteady", mutates_args=())
def unsteady(x: torch.Tensor) -> torch.Tensor:
    return x * next(_DRAWS)


def failures(forward, *args):
    verdict = validate(forward if isinstance(forward, nn.Module) else Function(forward), args or (X,)).verdict
    return [failure for part in verdict.failed_parts for failure in part.failures]


def first_cause(forward, *args):
    return failures(forward, *args)[0].cause


OVERWRITTEN = "argument 0 was overwritten before it was read, and no recorded operation did it"
BY_MODE = "it ran under the mode {}, and gives something else without it"
DISABLED = "torch._C.DisableTorchFunction was in force, under which no function mode sees a call"
CAUSES = {
    "a dispatch mode that changes values": (under(Doubling, torch.sin), BY_MODE.format("Doubling")),
    "a dispatch mode that changes the dtype": (under(Casting, torch.sin), BY_MODE.format("Casting")),
    "a hidden write": (overwritten, OVERWRITTEN),
    "a hidden write before a mode that changes nothing": (overwritten_under_a_mode, OVERWRITTEN),
    "a hidden write before random numbers": (overwritten_before_a_draw, OVERWRITTEN),
    "a kernel under a mode that changes nothing": (
        under(Counting, unsteady),
        "the kernel is not deterministic, and differs by more than the tolerance of torch.testing",
    ),
    "functions disabled": (under(torch._C.DisableTorchFunction, torch.sin), DISABLED),
    "functions disabled under a mode that is not its cause": (
        under(CountingFunctions, under(torch._C.DisableTorchFunction, torch.sin)),
        DISABLED,
    ),
    "functions disabled by a function that a mode calls": (under(Calling, torch.sin), DISABLED),
    "functions disabled by a mode": (under(Hidden, torch.sin), f"the mode Hidden called it, and {DISABLED}"),
}


@pytest.mark.parametrize(("forward", "cause"), CAUSES.values(), ids=CAUSES)
def test_what_happened_is_the_cause(forward, cause):
    assert first_cause(forward) == cause


@pytest.mark.parametrize(
    "mode", [Counting, CountingFunctions, DoublingFunctions, torch._C.DisableTorchFunctionSubclass]
)
def test_a_mode_that_is_recorded_or_changes_nothing_fails_nothing(mode):
    assert validate(Function(under(mode, torch.sin)), (X,)).verdict.status is Status.PASSED


@pytest.mark.parametrize("mode", [Doubling, DoublingFunctions])
def test_a_mode_around_the_validation_is_the_cause(mode):
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    with mode():
        found = failures(model)
    assert [found[0].operation, found[0].cause] == ["linear_1_1", BY_MODE.format(mode.__name__)]
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("mode", [Counting, CountingFunctions])
def test_a_mode_around_the_validation_that_changes_nothing_fails_nothing(mode):
    with mode():
        assert validate(nn.Linear(4, 4), (X,)).verdict.status is Status.PASSED
        assert first_cause(overwritten) == OVERWRITTEN


def test_what_follows_from_a_difference_has_no_cause():
    found = failures(lambda x: under(Doubling, torch.sin)(x).cos())
    assert [failure.operation for failure in found][:3] == ["sin_1_1", "add_1_2", "cos_1_3"]
    assert [failure.cause != "" for failure in found][:3] == [True, False, False]
    assert [failure.advice != "" for failure in found][:3] == [False, True, True]


def test_an_operation_that_reads_a_hidden_state_depends_on_more_than_its_arguments():
    torch.library.define("lens_causes::steps", "(Tensor x) -> Tensor")
    steps = []

    @torch.library.impl("lens_causes::steps", "CompositeExplicitAutograd")
    def count(x):
        return x + len(steps)

    def forward(x):
        steps.append(1)
        return torch.ops.lens_causes.steps(x)

    causes = {failure.cause for failure in failures(forward)}
    assert (
        "it gave something else for the same tensors: it depends on what is not among its recorded arguments" in causes
    )


def backward_inside(x):
    with torch.enable_grad():
        leaf = torch.ones(3, requires_grad=True)
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward(((leaf * 2).sum(),), (torch.ones(()),), False, False, (), accumulate_grad=True)
    return x + leaf.grad[0]


def test_a_backward_pass_by_the_engine_alone_is_named():
    causes = {one.operation: one.cause for one in failures(backward_inside)}
    assert "aten::mul" in causes
    assert set(causes.values()) == {"autograd called it in a backward pass, which is not recorded"}


def fake_beside_values(x):
    with FakeTensorMode() as fake:
        shape = fake.from_tensor(x).sin().shape
    y = x * shape[0]
    overwrite(y)
    return y.cos()


def test_fake_tensors_have_no_values(recwarn, caplog):
    with FakeTensorMode():
        model, x = nn.Linear(4, 4), torch.ones(2, 4)
    (unproven,) = validate(model, (x,)).verdict.unproven
    assert unproven.message == "1 of 1 activations have no values that could be compared: they are fake tensors"
    assert not recwarn.list
    assert not caplog.records  # PyTorch logs what raises for fake tensors


def test_fake_tensors_beside_a_hidden_write_are_not_its_cause():
    found = [failure for failure in failures(fake_beside_values) if failure.operation.startswith("cos")]
    assert found[0].cause == OVERWRITTEN


def test_meta_tensors_are_no_fake_ones():
    verdict = validate(nn.Linear(4, 4).to("meta"), (torch.ones(2, 4, device="meta"),)).verdict
    assert verdict.unproven[0].message.endswith("they are meta tensors")


class OnAnotherThread(nn.Module):
    """Runs a function on a thread that was there before, given the module and the first intermediate result."""

    def __init__(self, pool, function):
        super().__init__()
        self.register_buffer("scale", torch.ones(4))
        self._run = lambda x: pool.submit(function, self, x).result()

    def forward(self, x):
        y = x * self.scale
        self.view = self.scale.view(-1)
        z = self._run(y)
        return (y.sin() if z is None else z + y) + self.scale


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1, thread_name_prefix="loader") as executor:
        executor.submit(int).result()
        yield executor


def write_result(_, y):
    y.detach().mul_(2)


def write_buffer(module, _):
    module.view.add_(1)


ON_A_THREAD = {
    "made": (lambda _, y: y.detach() * 3, "the thread 'loader_0' made it, by mul"),
    "written": (write_result, f"{OVERWRITTEN}: the thread 'loader_0' wrote to it, by mul_"),
    "a buffer written": (write_buffer, "the thread 'loader_0' wrote to it, by add_"),
}


@pytest.mark.parametrize(("function", "cause"), ON_A_THREAD.values(), ids=ON_A_THREAD)
def test_a_thread_that_made_or_wrote_a_tensor_is_named(pool, function, cause):
    model = OnAnotherThread(pool, function)
    scale = model.scale
    assert cause in [failure.cause for failure in failures(model)]
    assert model.scale is scale
    assert type(scale) is type(X) is torch.Tensor


class Other(torch.Tensor):
    pass


OUT = torch.empty(2, 4)
USES = {
    "a tensor of the user's": (lambda module, _: type(module.scale), torch.Tensor),
    "stored": (lambda module, _: type(pickle.loads(pickle.dumps(module.scale))), torch.Tensor),  # noqa: S301 - our own
    "a parameter copied": (lambda module, _: type(copy.deepcopy(module.weight)), nn.Parameter),
    "written": (lambda _, y: type(torch.add(y, 1, out=OUT)), torch.Tensor),
    "a result stored": (lambda _, y: type(pickle.loads(pickle.dumps(y * 2))), torch.Tensor),  # noqa: S301 - our own
    "a result copied": (lambda _, y: type(copy.deepcopy(y)), torch.Tensor),
    "a result shown": (lambda _, y: repr(y).partition("(")[0], "tensor"),
    "with another class": (lambda _, y: type(y * torch.ones(4).as_subclass(Other)), Other),
}
SEEN = []


@pytest.mark.parametrize(("use", "expected"), USES.values(), ids=USES)
def test_a_thread_is_not_disturbed(pool, use, expected):
    def use_and_fail(module, y):
        y = y.detach()
        try:
            SEEN.append(use(module, y))
        except (RuntimeError, TypeError, pickle.PickleError) as error:
            SEEN.append(error)
        overwrite(y)

    SEEN.clear()
    model = OnAnotherThread(pool, use_and_fail)
    model.weight = nn.Parameter(torch.ones(4))
    assert failures(model)
    assert set(SEEN) == {expected}


@torch.library.custom_op("lens_causes::wait", mutates_args=())
def wait(x: torch.Tensor) -> torch.Tensor:
    WAITS.set()
    GO_ON.wait()
    return x.clone()


WAITS, GO_ON = threading.Event(), threading.Event()


@pytest.mark.parametrize("of_run", [True, False])
def test_a_call_that_ends_after_the_run_leaves_nothing_of_it(pool, of_run):
    for event in (WAITS, GO_ON):
        event.clear()
    x = torch.ones(3)
    seen = TensorsSeen({"input 'x'": x})
    with seen.active():
        future = pool.submit(wait, x * 2 if of_run else x)
        WAITS.wait()
    GO_ON.set()
    z = future.result()
    assert [type(one) for one in (x, z, z + x)] == [torch.Tensor] * 3


def test_tensors_without_memory_are_no_aliases(pool):
    seen = TensorsSeen({"buffer 'b'": torch.ones(2).to_mkldnn()})
    with seen.active():
        other = X.to_mkldnn()
        version = other._version
        pool.submit(torch.relu_, other).result()
        assert other._version > version
    assert not seen.findings.members


def idle(_, y):
    overwrite(y)


def compute_beside(module, y):
    torch.ones(3).mul_(2)
    module.scale + y
    overwrite(y)


@pytest.mark.parametrize("function", [idle, compute_beside])
def test_a_thread_that_only_runs_beside_a_fault_is_not_its_cause(pool, function):
    found = failures(OnAnotherThread(pool, function))
    assert found[0].cause == OVERWRITTEN
    assert not any("thread" in failure.cause for failure in found)
