"""The recorder's own operations on a custom autograd function are not recorded as the model's."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

from pytest_torchlens.capture import record
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function
from tests.models import failures


class ScalesTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.new(x)


def test_a_result_that_is_not_contiguous_is_looked_at_in_silence():
    found = validate(
        Function(lambda x: ScalesTheGradient.apply((x * 2).transpose(0, 1)).float() + 1), (torch.ones(3, 2),)
    )
    assert found, found.verdict
    assert "new" in [operation.layer_type for operation in found.history.record().operations]


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 2))

    def forward(self, x):
        return ScalesTheGradient.apply((x * self.weight).transpose(0, 1)).float().pow(2)


def test_a_result_that_is_an_alias_is_replayed_with_gradients():
    found = validate(Scaled(), (torch.ones(3, 2),))
    assert found, found.verdict


@pytest.mark.parametrize("given", [lambda x: x.new(x), lambda x: x.new([1.0, 2.0])], ids=["tensor", "list"])
def test_new_with_contents_is_no_uninitialised_memory(given):
    replay = validate(Function(lambda x: given(x * 2) + 1), (torch.ones(3, 2),)).verdict.part("replay")
    assert replay.status is Status.PASSED
    assert not replay.exempt


def test_new_with_a_shape_is():
    given = Function(lambda x: x.new(3, 2).fill_(1) + x + x.new_empty([3, 2]).zero_())
    replay = validate(given, (torch.ones(3, 2),)).verdict.part("replay")
    assert replay.exempt == {"uninitialised memory": 2}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


class OfItsMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x.mean().item()


class SignByNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.sign(x.detach().numpy()))


class NoisyAfterNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        deviation = float(x.clone().numpy().std())
        return torch.normal(x, deviation)


class DropoutByNumPy(torch.autograd.Function):
    """Draws although its second argument, which is no share of dropout, is 0."""

    @staticmethod
    def forward(ctx, x, least):
        return torch.from_numpy((x + torch.rand_like(x).clamp(min=least)).numpy())


class AddsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1) if (x < 9).all() else x


ARRAY = np.arange(6, dtype=np.float32).reshape(3, 2)
MODELS = {
    "an argument that is not contiguous": lambda x: OfItsMean.apply(x.t()),
    "an unknown one that is not contiguous": lambda x: Doubled.apply(torch.from_numpy(ARRAY).t()) + x.t(),
    "a result that is written to": lambda x: SignByNumPy.apply(x).copy_(x * 2),
    "an alias of it that is": lambda x: SignByNumPy.apply(x).detach().copy_(x * 2),
    "a write after a question": lambda x: AddsInPlace.apply(x * 1) * 2,
    "random numbers": lambda x: NoisyAfterNumPy.apply(x * 1),
    "random numbers in a function named dropout": lambda x: DropoutByNumPy.apply(x, 0),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("forward", MODELS.values(), ids=MODELS)
def test_a_custom_function_that_leaves_torch_is_one_operation(forward, mode):
    with mode():
        verdict = validate(Function(forward), (torch.linspace(-1, 1.5, 6).view(3, 2),), seed=3).verdict
    assert failures(verdict) == []


class GivesTheParameter(torch.nn.Module):
    """Returns a parameter out of a custom function, which autograd detaches in place where no gradient is followed."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(lambda x: self.weight, x, use_reentrant=True) * x


def test_a_parameter_that_leaves_a_custom_function_is_no_missed_operation():
    with torch.inference_mode():
        verdict = validate(GivesTheParameter(), (torch.rand(2),)).verdict
    assert failures(verdict) == []


class SineInNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.sin(x.detach().numpy()))


def test_saving_adds_no_operations_of_our_own_to_a_custom_function_over_an_array():
    model = Function(lambda x: SineInNumpy.apply(x) + 1)
    plain, saving = (record(model, (torch.ones(3),), keep=keep) for keep in ("none", "all"))
    assert [call.info.name for call in saving.calls] == [call.info.name for call in plain.calls]


class AsksInACheckpoint(torch.nn.Module):
    """Runs code in a checkpoint that reads values, draws Python's numbers and writes to a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=True)

    def block(self, x):
        self.steps.add_(1)
        return x * random.random() if x.sum().item() < 100 else x


def test_a_checkpoint_that_asks_values_is_its_steps():
    found = validate(AsksInACheckpoint(), (torch.rand(2, requires_grad=True),))
    assert failures(found.verdict) == []
    assert [call.info.name for call in found.history.recording.calls] == ["add_", "sum", "mul"]


def test_arrays_over_parts_of_one_memory_end_in_any_order():
    def forward(x):
        y = (x * 2).detach()
        kept, gone = y[:2].numpy(), y.numpy()
        del gone
        return y + kept.shape[0]

    assert failures(validate(Function(forward), (torch.rand(3),)).verdict) == []


class CopiesPastPython(torch.autograd.Function):
    """Copies in C++, as the kernels of an extension do."""

    @staticmethod
    def forward(ctx, x):
        storage = torch.UntypedStorage(x.nbytes)
        torch._C.StorageBase.copy_(storage, x.untyped_storage())
        return torch.empty(0).set_(storage).view(x.shape) * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class AddsUnderAGuard(CopiesPastPython):
    @staticmethod
    def forward(ctx, x):
        with torch._C.DisableTorchFunction():
            hidden = x + 1
        return hidden * 2


def test_a_function_that_calls_an_extension_is_one_operation_and_unproven():
    found = validate(Function(lambda x: CopiesPastPython.apply(x) + 1), (torch.rand(3, 2),))
    assert found.verdict.status is Status.UNPROVEN
    assert "CopiesPastPython called aten::copy_ in code that no mode sees" in found.verdict.words
    (parent,) = found.history["add_1"].parent_layers
    assert found.history[parent].layer_type == "copiespastpython"
    assert found.history["add_1"].has_input_ancestor


def test_a_function_that_hides_an_operation_fails():
    verdict = validate(Function(lambda x: AddsUnderAGuard.apply(x) + 1), (torch.rand(3, 2),)).verdict
    assert verdict.status is Status.FAILED
    assert "but no recorded operation did it" in verdict.words


class WaitsForAnother(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, begun, ended):
        begun.set()
        assert ended.wait(10)
        return x * 2


def test_what_another_thread_hides_meanwhile_fails():
    def forward(x):
        begun, ended = threading.Event(), threading.Event()
        hidden = x * 5

        def fill():
            assert begun.wait(10)
            torch._C.StorageBase.fill_(hidden.untyped_storage(), 0)
            ended.set()

        other = threading.Thread(target=fill, name="other")
        other.start()
        result = WaitsForAnother.apply(x, begun, ended)
        other.join()
        return result * 1

    verdict = validate(Function(forward), (torch.rand(3, 2),)).verdict
    assert verdict.status is Status.FAILED, verdict.words
    assert "in thread 'other', but no recorded operation did it" in verdict.words


def stashed(x):
    """Read a tensor that is computed inside ``apply_``, and that it does not return."""
    kept = []
    x.clone().apply_(lambda number: (kept.append(torch.tensor([number]) * 3), number)[1])
    return x * kept[0]


def after_a_node(x):
    y = x.detach().requires_grad_().tanh()
    y.grad_fn(torch.ones(3, 2))
    return stashed(x)


EXCUSED = {
    "a node of the autograd graph": after_a_node,
    "a function that calls an extension": lambda x: CopiesPastPython.apply(x) + stashed(x),
}


@pytest.mark.parametrize("forward", EXCUSED.values(), ids=EXCUSED)
def test_an_excused_operation_does_not_excuse_a_tensor_of_unknown_origin(forward):
    verdict = validate(Function(forward), (torch.rand(3, 2) + 0.5,)).verdict
    assert verdict.status is Status.FAILED, verdict.words
    assert "was made during the pass by no recorded operation" in verdict.words
