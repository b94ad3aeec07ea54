"""What a test has set up to hear of operations hears of its own, and what cannot be traced so is left alone."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from pytest_torchlens import log_forward_pass
from pytest_torchlens.capture.patches import module_calls_intercepted
from pytest_torchlens.records import Status
from tests.models import Function
from tests.run.traced import CALL
from tests.run.traced import X
from tests.run.traced import assert_equal
from tests.run.traced import traced


class Counting(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Counting, Dispatched])
def test_modes_of_the_test_hear_of_what_they_would_hear(mode):
    def test():
        with mode() as counting:
            nn.Linear(4, 2)(X).relu()
        return counting.count

    plain = test()
    result, found = traced(test)
    assert result == plain
    assert found.results[0].verdict


def traced_under_hooks(found):
    """Whether the first call, under hooks on saved tensors, was validated; PyTorch before 2.9 does not allow that."""
    if hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        return bool(found.results[0].verdict)
    return "hooks on saved tensors are set, which this PyTorch cannot take aside" in found.skip_reasons


def test_hooks_on_saved_tensors_hear_of_what_they_would_hear():
    def test():
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
            nn.Linear(4, 2)(X).relu().sum().backward()
        return len(packed)

    plain = test()
    result, found = traced(test)
    assert result == plain > 0
    assert traced_under_hooks(found)


def test_checkpointed_modules_backward_as_they_do():
    def test():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        x = X.clone().requires_grad_()
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True).sum().backward()
        return x.grad

    plain = test()
    result, found = traced(test)
    assert_equal(result, plain)
    assert traced_under_hooks(found)
    assert "it was made in backward" in found.skip_reasons


def test_warnings_are_given_once():
    def warns(x):
        return torch.__future__ and torch.nn.functional.softmax(x)

    def test():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Function(warns)(X)
        return len(caught)

    assert traced(test)[0] == test() == 1


def test_warnings_that_are_given_once_are_not_given_again():
    def warns(x):
        warnings.warn("mine", stacklevel=1)
        return x + 1

    def test():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                Function(warns)(X)
        return [str(warning.message) for warning in caught]

    assert traced(test, every=True)[0] == test() == ["mine"]


def test_compiled_modules_are_left_alone():
    def test():
        torch.compiler.reset()
        model = nn.Sequential(nn.Linear(4, 2))
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        function = torch.compile(lambda x: model(x) + 1, backend="eager", fullgraph=True)
        return compiled(X).shape, function(X).shape

    result, found = traced(test)
    assert result == ((3, 2), (3, 2))
    assert found.skip_reasons == {"it is compiled or scripted": 1}


def cos_and_one(x):
    return x.cos() + 1


def compiled():
    return torch.compile(cos_and_one, backend="eager", fullgraph=True)


def with_compiled(function):
    return lambda x: function(x * 2) * 2


WITH_COMPILED_FUNCTIONS = {
    "compiled before": lambda: with_compiled(compiled()),
    "compiled in forward": lambda: lambda x: compiled()(x) * 2,
    "attention": lambda: lambda x: flex_attention(*[x.expand(1, 1, 3, 4)] * 3),
    "in a thread": lambda: functools.partial(in_a_thread, compiled()),
}


def in_a_thread(function, x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, x).result() * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", WITH_COMPILED_FUNCTIONS.values(), ids=WITH_COMPILED_FUNCTIONS)
def test_compiled_functions_are_compiled_and_called(make):
    torch.compiler.reset()
    forward = make()
    plain = Function(forward)(X)
    torch.compiler.reset()
    for _ in range(2):
        result, found = traced(lambda: Function(forward)(X))
        assert_equal(result, plain)
        assert [call.stop_reason for call in found.results] == ["it runs compiled functions"]
        assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
        assert not is_in_torch_dispatch_mode()


def test_a_forward_that_records_a_model_itself_does_so():
    def forward(x):
        history = log_forward_pass(nn.ReLU(), x.cos())
        return x * history.num_operations

    result, found = traced(lambda: Function(forward)(X))
    assert_equal(result, X)
    assert [call.stop_reason for call in found.results] == ["it records a model itself"]
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0


def test_the_module_call_that_is_heard_looks_like_that_of_torch():
    def facts():
        call = nn.Module.__call__
        named = [getattr(call, name) for name in ("__module__", "__name__", "__qualname__", "__doc__")]
        return *named, inspect.signature(call), inspect.getsource(call), inspect.unwrap(call)

    plain = facts()
    with module_calls_intercepted():
        assert nn.Module.__call__ is not CALL
        assert facts() == plain


LEFT_ALONE = {
    "scripted": (lambda m: torch.jit.script(m)(X), "it is compiled or scripted"),
    "vmap": (lambda m: torch.vmap(m)(X), "it was made inside a function transform"),
    "grad": (lambda m: torch.func.grad(lambda x: m(x).sum())(X), "it was made inside a function transform"),
    "export": (lambda m: torch.export.export(m, (X,)), "it is compiled or scripted"),
    "jit trace": (lambda m: torch.jit.trace(m, X, check_trace=False), None),
    "fx": (torch.fx.symbolic_trace, None),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("use", "reason"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_left_alone(use, reason):
    result, found = traced(lambda: use(nn.Sequential(nn.Linear(4, 2), nn.ReLU())))
    assert not isinstance(result, Exception), result
    assert found.results == ()
    assert set(found.skip_reasons) <= {reason, "its tensors are fake"}


def test_other_threads_are_left_alone():
    def test():
        thread = threading.Thread(target=lambda: nn.ReLU()(X))
        thread.start()
        thread.join()

    assert traced(test)[1].calls == 0


def test_threads_of_forward_are_recorded():
    def forward(x):
        results = []
        thread = threading.Thread(target=lambda: results.append(x * 2))
        thread.start()
        thread.join()
        return results[0] + 1

    result, found = traced(lambda: Function(forward)(X))
    assert_equal(result, X * 2 + 1)
    assert (found.results[0].operations, found.results[0].verdict.status) == (2, Status.PASSED)


class Mocked(torch.Tensor):
    heard = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Mocked.heard += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_code_of_the_tests_own_does_not_run_again():
    def test():
        Mocked.heard = 0
        nn.ReLU()(X.as_subclass(Mocked))
        return Mocked.heard

    plain = test()
    result, found = traced(test)
    assert result == plain
    verdict = found.results[0].verdict
    assert verdict.status is Status.UNPROVEN
    assert verdict.part("replay").status is Status.NOT_RUN
    assert verdict.part("replay").reason == "operations on a Mocked run code of its own that would run again"
    counted = []
    mapped = torch.vmap(lambda row: counted.append(1) or row * 2)
    _, found = traced(lambda: Function(mapped)(X))
    assert counted == [1]
    assert found.results[0].verdict.status is Status.UNPROVEN
    assert found.results[0].verdict.part("invariants").status is Status.PASSED


def test_time_and_memory_are_bounded():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    _, found = traced(lambda: model(X), seconds=0.0)
    assert found.skip_reasons == {"the time for this test was up": 1}
    _, found = traced(lambda: model(X), seconds=1e-9)
    assert found.skip_reasons == {"the time for this test was up": 1} or found.results[0].stop_reason
    _, found = traced(lambda: model(X), nbytes=10)
    verdict = found.results[0].verdict
    assert verdict.status is Status.UNPROVEN
    assert verdict.part("replay").reason.startswith("the replay would hold about 96 B")


def test_many_calls_are_not_held(monkeypatch):
    monkeypatch.setattr("pytest_torchlens.run.module_calls.MOST_CALLS", 10)

    def forward(x):
        for _ in range(20):
            x = x + 1
        return x

    result, found = traced(lambda: Function(forward)(X))
    assert_equal(result, Function(forward)(X))
    assert found.results[0].stop_reason == "it makes more than 10 calls"


def hidden(x):
    with torch._C.DisableTorchFunction():
        return x.cos()


@pytest.mark.parametrize(
    "forward", [nn.functional.relu, Function(torch.cos), hidden, torch.vmap(torch.sin), torch.inverse]
)
def test_what_a_test_lets_go_of_is_freed(forward):
    def test():
        x = X.clone()
        model = nn.Sequential(nn.Linear(4, 4), Function(forward))
        with contextlib.suppress(RuntimeError):
            model(x)
        return [weakref.ref(thing) for thing in (model, model[0].weight, x)]

    traced(test)  # what is imported at first may hold on to whoever did
    gc.disable()
    try:
        held, found = traced(test)
        assert [reference() for reference in held] == [None] * 3
    finally:
        gc.enable()
    assert found.calls == 1


def test_a_forward_of_the_model_alone_is_another():
    model = nn.Linear(4, 4)

    def test():
        model(X)
        model.forward = lambda x: x * 2
        return model(X)

    result, found = traced(test)
    assert_equal(result, X * 2)
    assert [call.operations for call in found.results] == [1, 1]
    assert found.known == 0


def test_a_generator_of_the_tests_own_stands_where_it_would():
    def test():
        generator = torch.Generator().manual_seed(5)
        Function(lambda x: x + torch.rand(4, generator=generator))(X)
        return torch.rand(2, generator=generator)

    plain = test()
    result, found = traced(test)
    assert_equal(result, plain)
    assert found.results[0].verdict


def test_inputs_that_forward_overwrites_are_left_so_and_backward_works():
    def test():
        x = X.clone()
        weight = torch.ones(4, requires_grad=True)
        y = Function(lambda x: x.mul_(2) * weight)(x)
        y.sum().backward()
        return x, y, weight.grad, x._version

    plain = test()
    result, found = traced(test)
    assert_equal(result[:3], plain[:3])
    assert result[3] == plain[3]
    assert found.results[0].verdict
