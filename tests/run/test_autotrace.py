"""Models that a test calls are recorded and validated, and the test notices nothing of it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from pytest_torchlens.capture.patches import module_calls_intercepted
from pytest_torchlens.records import Status
from pytest_torchlens.run.module_calls import Autotrace
from pytest_torchlens.validate import PARTS
from tests.models import Function
from tests.models import SmallConvNet
from tests.run.traced import CALL
from tests.run.traced import X
from tests.run.traced import assert_equal
from tests.run.traced import plan
from tests.run.traced import traced


def steps(model, optimizer):
    """Train; return all that can be seen of it."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3, 8, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    return losses, gradients, model.state_dict(), torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002


def train():
    torch.manual_seed(2)
    model = SmallConvNet()
    return steps(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


def test_training_is_bit_for_bit_what_it_is_without():
    plain = train()
    result, found = traced(train)
    assert_equal(result, plain)
    assert (found.calls, found.known) == (3, 2)
    (call,) = found.results
    assert call.model == "SmallConvNet"
    assert call.verdict.status is Status.PASSED
    parts = {part.name: part for part in call.verdict.parts}
    assert parts["observer"].status is Status.NOT_RUN
    assert parts["observer"].reason == "forward is called once, by the test"
    assert all(parts[name].status is Status.PASSED and parts[name].checked for name in PARTS[1:])
    assert 0 < call.seconds <= found.seconds


def test_forward_is_called_once():
    model = Function(lambda x: calls.append(1) or x * 2)
    calls = []
    model.register_forward_hook(lambda *_: calls.append("hook"))
    _, found = traced(lambda: model(X))
    assert calls == [1, "hook"]
    assert found.results[0].verdict


def test_all_calls_or_one_of_a_kind():
    model = nn.Linear(4, 2)

    def test():
        for batch in (X, X + 1, X[:2], X.double().float()):
            model(batch)
        model.eval()(X)
        nn.Linear(4, 2)(X)
        nn.Linear(4, 3)(X)
        with torch.no_grad():
            model(X)

    _, found = traced(test)
    assert (found.calls, found.known, len(found.results)) == (8, 3, 5)
    _, found = traced(test, every=True)
    assert (found.calls, found.known, len(found.results)) == (8, 0, 8)


def test_what_one_test_validated_another_does_not_but_a_rerun_does():
    autotrace = Autotrace()
    counts = [len(traced(lambda: nn.ReLU()(X), autotrace, name)[1].results) for name in ("a", "b", "a", "a")]
    assert counts == [1, 0, 1, 1]


def test_numbers_and_words_among_the_inputs_make_a_difference():
    model = Function(lambda x, n, word: x * n)
    _, found = traced(lambda: [model(X, *rest) for rest in ((1, "a"), (2, "a"), (0.5, "a"), (2, "b"))])
    assert (found.known, len(found.results)) == (0, 4)


def hidden(x):
    with torch._C.DisableTorchFunction():
        return x.cos()


def test_a_graph_that_does_not_hold_is_found_and_the_result_is_the_true_one():
    result, found = traced(lambda: Function(hidden)(X))
    assert_equal(result, X.cos())
    verdict = found.results[0].verdict
    assert verdict.status is Status.FAILED
    assert [failure.operation for failure in verdict.part("completeness").failures] == ["aten::cos"]


def test_a_hidden_write_is_found():
    def forward(x):
        y = x * 2
        with torch._C.DisableTorchFunction():
            y.add_(1)
        return y + 0

    verdict = traced(lambda: Function(forward)(X))[1].results[0].verdict
    assert [part.name for part in verdict.parts if part.status is Status.FAILED] == ["replay", "completeness"]
    assert verdict.part("replay").failures[0].operation == "add_1_2"


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise KeyError("mine")


RAISES = {
    "forward": lambda x: x @ x,
    "python": lambda x: x.no_such_thing,
    "composite": lambda x: torch.nn.functional.interpolate(x, scale_factor="much"),
    "custom": Raising.apply,
}


@pytest.mark.parametrize("forward", RAISES.values(), ids=RAISES)
def test_what_forward_raises_is_raised_as_it_is(forward):
    def test():
        return Function(forward)(X)

    with pytest.raises(Exception) as plain:  # noqa: PT011
        test()
    error, found = traced(test)
    assert (type(error), str(error)) == (plain.type, str(plain.value))
    assert error.__cause__ is None
    assert found.skip_reasons == {"it raised": 1}
    assert found.results == ()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, pytest.skip.Exception, SystemExit])
def test_nothing_stays_on_after_what_is_no_error(stop):
    def forward(x):
        x = x + 1
        raise stop

    autotrace = Autotrace()
    autotrace.begin("test", plan())
    with module_calls_intercepted(), pytest.raises(stop), autotrace.on():
        Function(forward)(X)
    assert nn.Module.__call__ is CALL
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    assert autotrace.result().skip_reasons == {"it raised": 1}


def test_a_test_may_replace_module_calls_itself(monkeypatch):
    seen = []

    def spy(module, *args):
        seen.append(type(module))
        return before(module, *args)

    with module_calls_intercepted():
        before = nn.Module.__call__
        monkeypatch.setattr(nn.Module, "__call__", spy)
        autotrace = Autotrace()
        autotrace.begin("test", plan())
        with autotrace.on():
            nn.Sequential(nn.ReLU())(X)
        monkeypatch.undo()
        assert nn.Module.__call__ is before
    assert nn.Module.__call__ is CALL
    assert seen == [nn.Sequential, nn.ReLU]
    assert autotrace.result().results[0].verdict


class Averaging(nn.Module):
    """Puts another tensor in the place of its buffer, as some norms do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


def test_a_buffer_may_be_replaced():
    model = Averaging()
    _, found = traced(lambda: [model(X), model(X)], every=True)
    assert [call.verdict.status for call in found.results] == [Status.PASSED, Status.PASSED]
    assert model.seen == 2
    torch.testing.assert_close(model.mean, X.mean(0) * 0.19)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_are_validated_from_the_second_call():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    _, found = traced(lambda: [model(X), model(X)])
    assert found.skip_reasons == {"it has yet to make its parameters": 1}
    assert found.results[0].verdict.status is Status.PASSED


class Checked(nn.Module):
    def forward(self, x):
        if not x.isfinite().all():
            raise ValueError("not finite")
        return x * 2


def test_a_call_that_raised_is_like_no_other():
    def calls():
        model = Checked()
        with pytest.raises(ValueError, match="not finite"):
            model(X * float("nan"))
        return model(X), model(X)

    _, found = traced(calls)
    assert (found.calls, found.known, found.skip_reasons) == (3, 1, {"it raised": 1})
    assert [call.verdict.status for call in found.results] == [Status.PASSED]


def test_a_call_without_a_verdict_is_like_no_other(monkeypatch):
    def breaks(*_):
        raise RuntimeError("a fault of ours")

    model = nn.ReLU()
    with monkeypatch.context() as patched:
        patched.setattr("pytest_torchlens.run.module_calls.ModelHistory", breaks)
        result, found = traced(lambda: [model(X), model(X)])
    assert torch.equal(result[0], X.relu())
    assert (found.calls, found.known, len(found.results)) == (2, 0, 2)
    assert found.left_out == {"an error of pytest-torchlens": 2}


def test_a_call_whose_verdict_a_limit_cut_short_is_like_no_other():
    model = nn.Linear(4, 4)
    _, found = traced(lambda: [model(X), model(X)], nbytes=0)
    assert (found.known, [call.verdict.status for call in found.results]) == (0, [Status.UNPROVEN] * 2)
