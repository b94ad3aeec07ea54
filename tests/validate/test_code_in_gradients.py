"""A gradient that forward takes, and in which autograd runs code of the model, is replayed or taken from the record."""

from __future__ import annotations

import contextlib
import sys
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate import validate


class Rounded(torch.autograd.Function):
    """Its gradient is not that of its step, which has none."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class Doubled(torch.autograd.Function):
    """Its step runs without gradients, as that of all custom functions: a replay has no way back through it."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, count):
        ctx.count = count
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.count.add_(1)
        return gradient * 2, None


class TakesGradient(nn.Module):
    """Takes the gradient of a loss with respect to its weight in forward; `bend` runs on the hidden value."""

    create_graph = False

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(()))

    def bend(self, hidden):
        return hidden

    def hidden(self, x):
        return self.bend(self.linear(x))

    def forward(self, x):
        with torch.enable_grad():
            hidden = self.hidden(x)
            loss = hidden.square().sum()
            (gradient,) = torch.autograd.grad(loss, self.linear.weight, create_graph=self.create_graph)
        return hidden.detach() + gradient.sum() + self.count


class Straight(TakesGradient):
    def bend(self, hidden):
        return Rounded.apply(hidden)


class StraightTwice(Straight):
    create_graph = True


class ScaledByHook(TakesGradient):
    def bend(self, hidden):
        hidden.register_hook(lambda gradient: gradient * 2)
        return hidden


class ScaledByNode(TakesGradient):
    def bend(self, hidden):
        hidden.grad_fn.register_prehook(lambda gradients: tuple(one * 2 for one in gradients))
        return hidden


class CountsInHook(TakesGradient):
    def bend(self, hidden):
        hidden.register_hook(self.note)
        return hidden

    def note(self, gradient):
        self.count += 1


class CountsInFunction(TakesGradient):
    def bend(self, hidden):
        return Counted.apply(hidden, self.count)


class CountsWhenUnpacked(TakesGradient):
    def hidden(self, x):
        with saved_tensors_hooks(lambda tensor: tensor, self.unpacked):
            return self.linear(x)

    def unpacked(self, tensor):
        self.count.add_(1)
        return tensor


class Recomputed(TakesGradient):
    def hidden(self, x):
        return checkpoint(nn.Sequential(self.linear, self.norm), x, use_reentrant=False)


class ThroughFunction(TakesGradient):
    def bend(self, hidden):
        return Doubled.apply(hidden)


class RecomputedWithoutState(TakesGradient):
    def hidden(self, x):
        return checkpoint(self.linear, x, use_reentrant=False)


class ThroughGraphOfGradient(TakesGradient):
    """Its second gradient runs no code, but goes through the graph of the first, to which a hook belongs."""

    def forward(self, x):
        x = x.detach().clone().requires_grad_()
        weight = self.linear.weight.detach().clone().requires_grad_()
        weight.register_hook(lambda gradient: gradient * 2)
        (gradient,) = torch.autograd.grad((x @ weight).pow(3).sum(), weight, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), x)[0]


class OverwritesGradient(ScaledByHook):
    create_graph = True

    def forward(self, x):
        hidden = self.hidden(x)
        (gradient,) = torch.autograd.grad(hidden.square().sum(), self.linear.weight, create_graph=True)
        gradient[0].mul_(0.1)
        return hidden + gradient.mul_(0.1).sum()


NOT_REPLAYED = [
    *(Straight, StraightTwice, ThroughFunction, ThroughGraphOfGradient, OverwritesGradient),
    *(ScaledByHook, ScaledByNode, CountsInHook, CountsInFunction, CountsWhenUnpacked),
]


@pytest.mark.parametrize("kind", [*NOT_REPLAYED, Recomputed])
def test_a_gradient_by_code_of_the_model_is_unproven_and_names_the_code(kind):
    torch.manual_seed(0)
    verdict = validate(kind().train(), (torch.randn(3, 4),)).verdict
    assert verdict.status is Status.UNPROVEN, verdict.words
    (reason,) = {one.message for one in verdict.unproven}
    assert reason.startswith("replay: grad_1_")
    assert ("test_code_in_gradients.py, line " in reason) is (kind is not Recomputed)


class ChangesSavedTensor(TakesGradient):
    def forward(self, x):
        with torch.enable_grad(), torch.autograd.graph.allow_mutation_on_saved_tensors():
            hidden = self.linear(x).exp()
            hidden.mul_(2)
            return torch.autograd.grad(hidden.sum(), self.linear.weight)[0]


def test_code_that_pytorch_runs_to_dispatch_an_operation_is_not_named():
    (reason,) = validate(ChangesSavedTensor(), (torch.randn(3, 4),)).verdict.unproven
    assert " (graph.py, line " in reason.message


@pytest.mark.parametrize("kind", [TakesGradient, RecomputedWithoutState])
def test_a_gradient_that_the_steps_give_is_proven(kind):
    torch.manual_seed(0)
    verdict = validate(kind().train(), (torch.randn(3, 4),)).verdict
    assert verdict.status is Status.PASSED, verdict.words


class ChangesBufferOfForward(CountsInHook):
    def forward(self, x):
        self.count = self.count + 1
        return super().forward(x)


class ChangesParameter(CountsInHook):
    def note(self, gradient):
        with torch.no_grad():
            self.norm.weight.mul_(0.5)

    def forward(self, x):
        return self.norm(x) + super().forward(x)


class ChangesParameterReadLater(ChangesParameter):
    def forward(self, x):
        return CountsInHook.forward(self, x) + self.norm(x)


class ChangesActivation(CountsInHook):
    def note(self, gradient):
        self.scale.mul_(2)

    def forward(self, x):
        self.scale = x.detach() * 2
        return super().forward(x) + self.scale


class ChangesAttribute(CountsInHook):
    def __init__(self):
        super().__init__()
        self.seen, self.listed = torch.zeros(4), [torch.zeros(())]

    def note(self, gradient):
        self.seen.copy_(gradient.sum(0))
        self.listed[0].add_(1)

    def forward(self, x):
        return super().forward(x) + self.seen * self.listed[0]


GLOBAL = torch.zeros(4)


class ChangesGlobal(CountsInHook):
    def note(self, gradient):
        GLOBAL.copy_(gradient.sum(0))

    def forward(self, x):
        return super().forward(x) + GLOBAL


CHANGES = [
    *(ChangesBufferOfForward, ChangesParameter, ChangesParameterReadLater, ChangesActivation),
    *(ChangesAttribute, ChangesGlobal),
]


@pytest.mark.parametrize("kind", CHANGES)
def test_what_code_in_a_gradient_changes_is_a_result_of_the_gradient(kind):
    model = kind()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = validate(model, (torch.randn(3, 4),))
    assert found.verdict.status is Status.UNPROVEN, found.verdict.words
    assert {part.name for part in found.verdict.parts if part.status is not Status.PASSED} == {"replay"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_buffer_that_a_hook_changes_is_read_by_later_operations_as_written_by_the_gradient():
    history = ModelHistory(record(CountsInHook(), (torch.randn(3, 4),)))
    gradient = next(operation for operation in history.operations if operation.layer_type == "grad")
    assert gradient.label in history.operations[-2].parent_layers


class RaisesInHook(CountsInHook):
    def note(self, gradient):
        super().note(gradient)
        raise ValueError("no gradient")

    def forward(self, x):
        with contextlib.suppress(ValueError):
            super().forward(x)
        return self.linear(x) + self.count


def test_what_code_changes_before_it_raises_is_recorded():
    verdict = validate(RaisesInHook(), (torch.randn(3, 4),)).verdict
    assert verdict.status is Status.PASSED, verdict.words


class KeepsGradient(CountsInHook):
    def note(self, gradient):
        self.kept = [gradient[0], gradient * 2]

    def forward(self, x):
        return super().forward(x) + self.kept[0]


class KeepsResult(KeepsGradient):
    def forward(self, x):
        return TakesGradient.forward(self, x) + self.kept[1]


class Keeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.kept.append(gradient * 2)
        return gradient * 2, None


class KeepsInFunction(TakesGradient):
    def bend(self, hidden):
        self.kept = []
        return Keeper.apply(hidden, self.kept)

    def forward(self, x):
        return super().forward(x) + self.kept[0]


@pytest.mark.parametrize("kind", [KeepsGradient, KeepsResult, KeepsInFunction])
def test_what_code_in_a_gradient_keeps_for_later_is_unproven(kind):
    verdict = validate(kind(), (torch.randn(3, 4),)).verdict
    assert verdict.status is Status.UNPROVEN, verdict.words
    assert "reads a tensor made inside grad_1_" in verdict.part("completeness").reason


def test_what_another_operation_keeps_fails_beside_it():
    secret = []

    @torch.library.custom_op("lens_keeps::result", mutates_args=())
    def keeps(x: torch.Tensor) -> torch.Tensor:
        secret[:] = [x * 3]
        return x.clone()

    class Both(KeepsGradient):
        def forward(self, x):
            return super().forward(x) + keeps(x) + secret[0]

    verdict = validate(Both(), (torch.randn(3, 4),)).verdict
    assert verdict.part("completeness").status is Status.FAILED


@pytest.mark.parametrize(
    "attribute", [torch.eye(4).to_sparse(), torch.ones(2, device="meta"), torch.ones(4).to_mkldnn()]
)
def test_an_attribute_of_any_layout_may_stand_beside(attribute):
    model = CountsInHook()
    model.attribute = attribute
    assert validate(model, (torch.randn(3, 4),)).verdict.status is Status.UNPROVEN


class Noted(torch.Tensor):
    names: ClassVar = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.names.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class TakesNoted(ScaledByHook):
    def forward(self, x):
        return super().forward(x.neg().as_subclass(torch.Tensor))


def test_a_tensor_class_of_the_user_sees_nothing_of_the_watch():
    model, x = TakesNoted(), torch.randn(3, 4).as_subclass(Noted)
    Noted.names.clear()
    model(x)
    without_recording = [*Noted.names]
    Noted.names.clear()
    record(model, (x,))
    assert Noted.names == without_recording != []


def test_results_that_were_taken_are_compared_with_the_record():
    recording = record(ScaledByHook(), (torch.randn(3, 4),))
    (code,) = recording.code_in_gradients.values()
    code.outputs[0].add_(1)
    replay, *_ = check_recording(recording, ModelHistory(recording), ["replay"])
    assert replay.status is Status.FAILED
    assert replay.failures[0].operation.startswith("grad_1_")


def test_a_wrong_record_before_a_gradient_fails():
    recording = record(ScaledByHook(), (torch.randn(3, 4),))
    recording.calls[1].args = (*recording.calls[1].args, 1.5)
    replay, *_ = check_recording(recording, ModelHistory(recording), ["replay"])
    assert replay.status is Status.FAILED


def test_a_profiler_of_the_user_stays():
    seen = []

    def profiler(frame, event, argument):
        seen.append(event)

    model, x = ScaledByHook(), torch.randn(3, 4)
    sys.setprofile(profiler)
    try:
        record(model, (x,))
        after = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert after is profiler
    assert "call" in seen


def test_a_profiler_that_a_hook_sets_stays():
    def profiler(frame, event, argument):
        pass

    class Profiled(CountsInHook):
        def note(self, gradient):
            sys.setprofile(profiler)

    model, x = Profiled(), torch.randn(3, 4)
    try:
        record(model, (x,))
        after = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert after is profiler


class StepsInBackward(nn.Module):
    """Takes an optimizer's step for each parameter when its gradient is complete, and forgets the gradient."""

    def __init__(self, step, registers=True):
        super().__init__()
        self.linear, self.other = nn.Linear(4, 4), nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.1)
        self.step = step
        self.registers = registers
        if not registers:
            self.register()

    def register(self):
        for parameter in self.linear.parameters():
            parameter.register_post_accumulate_grad_hook(lambda one: self.step(self, one))

    def forward(self, x):
        if self.registers:
            self.register()
        with torch.enable_grad():
            self.linear(x).sum().backward()
        return self.linear(x) + self.other.weight.sum()


def of_all(model, _):
    for parameter in model.other.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.optimizer.step()
    model.optimizer.zero_grad()


def of_one(model, parameter):
    if parameter.grad is not None:
        model.optimizer.step()
    parameter.grad = None


def by_hand(_, parameter):
    with torch.no_grad():
        parameter -= 0.1 * parameter.grad


def past_the_version(_, parameter):
    parameter.data.sub_(0.1 * parameter.grad)
    parameter.grad = None


@pytest.mark.parametrize("step", [of_all, of_one, by_hand, past_the_version])
@pytest.mark.parametrize("registers", [True, False], ids=["in forward", "before"])
def test_a_step_in_a_backward_pass_is_not_shown_and_put_back(step, registers):
    model = StepsInBackward(step, registers)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    hooks = {name: dict(one._post_accumulate_grad_hooks or {}) for name, one in model.named_parameters()}
    verdict = validate(model, (torch.rand(2, 4),)).verdict
    assert verdict.status is Status.UNPROVEN, verdict.words
    assert "inside autograd" in verdict.words
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert {name: dict(one._post_accumulate_grad_hooks or {}) for name, one in model.named_parameters()} == hooks


def test_a_hook_that_forward_removes_is_put_back():
    class Removes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.hook = self.linear.weight.register_post_accumulate_grad_hook(lambda _: None)

        def forward(self, x):
            self.hook.remove()
            return self.linear(x)

    model = Removes()
    assert validate(model, (torch.rand(2, 4),)).verdict.status is Status.PASSED
    assert len(model.linear.weight._post_accumulate_grad_hooks) == 1
