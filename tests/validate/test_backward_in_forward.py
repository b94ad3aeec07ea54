"""``backward()`` in forward is one operation that makes the gradients of the leaves, or adds to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Squared


class Trains(nn.Module):
    """A model whose forward runs backward passes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 4)

    def latent(self, x):
        return x.detach().clone().requires_grad_()


class ReadsGradient(Trains):
    def forward(self, x):
        z = self.latent(x)
        self.fc(z).square().sum().backward()
        return z.grad * 2


class AddsUp(Trains):
    def forward(self, x):
        z = self.latent(x)
        for _ in range(3):
            self.fc(z).square().sum().backward()
        return z.grad


class ReadsGradientOfWeight(Trains):
    def forward(self, x):
        self.fc(x).square().sum().backward()
        return self.fc.weight.grad.sum() + x


class Optimises(Trains):
    optimizer = torch.optim.Adam

    def forward(self, x):
        z = nn.Parameter(x.clone())
        optimizer = self.optimizer([z], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            self.fc(z).square().sum().backward()
            optimizer.step()
        return z.detach() * 1


class OptimisesByHand(Trains):
    def forward(self, x):
        z = torch.zeros(4, requires_grad=True)
        for _ in range(3):
            (self.fc(x) + z).square().mean().backward()
            z.data.sub_(0.1 * z.grad.data)
            z.grad = None
        return z.detach() + x


class OptimisesWithClosure(Trains):
    def forward(self, x):
        z = self.latent(x)
        optimizer = torch.optim.LBFGS([z], max_iter=3)

        def loss():
            optimizer.zero_grad()
            value = self.fc(z).square().sum()
            value.backward()
            return value

        optimizer.step(loss)
        return z.detach() * 1


class AdaptsItself(Trains):
    """Training at test time, of its own weights."""

    def forward(self, x):
        optimizer = torch.optim.SGD(self.fc.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            (self.fc(x) - x).square().mean().backward()
            nn.utils.clip_grad_norm_(self.fc.parameters(), 1.0)
            optimizer.step()
        return self.fc(x)


class TwiceDifferentiated(Trains):
    def forward(self, x):
        z = self.latent(x)
        self.fc(z).sin().sum().backward(create_graph=True)
        gradient, z.grad = z.grad, None
        gradient.square().sum().backward()
        return z.grad


class SeveralResults(Trains):
    def forward(self, x):
        z = self.latent(x)
        y = self.fc(z)
        torch.autograd.backward([y, y.exp().sum()], [torch.ones_like(y) * 2, None], inputs=[z])
        return z.grad


class Retains(Trains):
    def forward(self, x):
        z = self.latent(x)
        y = self.fc(z)
        y.retain_grad()
        y.sin().sum().backward()
        return y.grad + z.grad


class RetainsForEachClass(Trains):
    """Grad-CAM: PyTorch makes a new sum of the gradients of a result, and adds in place to those of a leaf."""

    create_graph = False

    def forward(self, x):
        z = self.latent(x)
        y = self.fc(z).relu()
        y.retain_grad()
        scores, found = self.fc(y).square(), []
        for k in range(3):
            scores[:, k].sum().backward(retain_graph=True, create_graph=self.create_graph)
            found += [y.grad, z.grad.clone()]
        return torch.stack(found)


class RetainsInAGraph(RetainsForEachClass):
    create_graph = True


class RetainsOtherStrides(Trains):
    """The gradient of a result is contiguous, whatever strides the result has."""

    def forward(self, x):
        y = self.fc(self.latent(x)).t()
        y.retain_grad()
        y.sum().backward(retain_graph=True)
        first = y.grad
        (y * x.t()).sum().backward()
        return first.view(-1) + y.grad.view(-1)


class InputsInTheMiddle(Trains):
    def forward(self, x):
        y = self.fc(self.latent(x))
        for _ in range(2):
            torch.autograd.backward(y.sin().sum(), retain_graph=True, inputs={"y": y})
        return y.grad * 2


class OfAGenerator(Trains):
    def forward(self, x):
        z = self.latent(x)
        y = self.fc(z)
        results = (y * k for k in (1, 2))
        torch.autograd.backward(results, (torch.ones_like(y) for _ in range(2)), inputs=iter([z]))
        return z.grad * 2


class Rows(Trains):
    def forward(self, x):
        z, rows = self.latent(x), []
        y = self.fc(z)
        for i in range(4):
            z.grad = None
            y[0, i].backward(retain_graph=True)
            rows.append(z.grad.clone())
        return torch.stack(rows)


class OtherStrides(Trains):
    """The gradient of an expanded value has the strides of the leaf."""

    def forward(self, x):
        z = x.t().clone(memory_format=torch.preserve_format).detach().requires_grad_()
        z.sum().backward()
        return z.grad.t() + x


class SparseGradient(Trains):
    def forward(self, x):
        table = nn.Embedding.from_pretrained(torch.ones(5, 3), freeze=False, sparse=True)
        for _ in range(2):
            (table(torch.tensor([1, 2, 1])) * x.sum()).sum().backward()
        return table.weight.grad.to_dense()


class DenseOntoSparse(Trains):
    def forward(self, x):
        table = nn.Embedding.from_pretrained(torch.ones(5, 4), freeze=False, sparse=True)
        (table(torch.tensor([1, 2])) * x).sum().backward()
        (table.weight[:2] * x).sum().backward()
        return table.weight.grad * 1


class Unread(Trains):
    def forward(self, x):
        self.fc(self.latent(x)).sum().backward()
        return x * 2


class Impossible(Trains):
    def forward(self, x):
        try:
            x.sum().backward()
        except RuntimeError:
            return self.fc(x)


class WrongArguments(Trains):
    def forward(self, x):
        words = []
        for wrong in [(), (5,), ("ab",), ([x, 5],), (self.fc(x).sum(), None, None, False, None, {}, 1)]:
            with pytest.raises((TypeError, AttributeError, AssertionError, RuntimeError)) as raised:
                torch.autograd.backward(*wrong)
            words.append(f"{raised.type.__name__}: {raised.value}")
        self.words = words
        return self.fc(x)


class CheckpointedAgain(Trains):
    def forward(self, x):
        checkpoint(self.fc, x, use_reentrant=False).square().sum().backward()
        return self.fc.weight.grad + 0


PROVEN = [
    *(ReadsGradient, AddsUp, ReadsGradientOfWeight, Optimises, OptimisesByHand, OptimisesWithClosure, AdaptsItself),
    *(TwiceDifferentiated, SeveralResults, Retains, Rows, OtherStrides, SparseGradient, Unread, Impossible),
    *(CheckpointedAgain, RetainsForEachClass, RetainsInAGraph, RetainsOtherStrides, InputsInTheMiddle, OfAGenerator),
    *(DenseOntoSparse, WrongArguments),
]


def example():
    torch.manual_seed(1)
    return torch.randn(2, 4)


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")
@pytest.mark.parametrize("kind", PROVEN)
def test_a_backward_pass_is_proven(kind):
    model = kind()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    verdict = validate(model, (example(),)).verdict
    assert verdict.status is Status.PASSED, verdict.words
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_from_before_are_added_to_and_put_back():
    model = ReadsGradientOfWeight()
    gradient = model.fc.weight.grad = torch.ones(4, 4)
    verdict = validate(model, (example(),)).verdict
    assert verdict.status is Status.PASSED, verdict.words
    assert model.fc.weight.grad is gradient
    assert torch.equal(gradient, torch.ones(4, 4))


class ByHook(Trains):
    def forward(self, x):
        z = self.latent(x)
        z.register_post_accumulate_grad_hook(self.note)
        self.fc(z).sum().backward()
        return z.grad

    def note(self, leaf):
        leaf.grad.mul_(2)


class Reentrant(Trains):
    """The weights are not in the graph that the backward pass begins from."""

    def forward(self, x):
        checkpoint(lambda x: self.fc(x).sin(), self.latent(x), use_reentrant=True).sum().backward()
        return self.fc.weight.grad + 0


class SetsVariable(Trains):
    """An attribute of a custom function's context is no leaf."""

    value = 5

    def forward(self, x):
        return Noted.apply(self.fc(x), self.value).sum().backward() or self.fc.weight.grad + 1


class SetsVariableToTensor(SetsVariable):
    value = torch.ones(2)


class Noted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, variable):
        ctx.variable = variable
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


@pytest.mark.parametrize("kind", [ByHook, Reentrant, SetsVariable, SetsVariableToTensor])
def test_a_backward_pass_that_runs_code_of_the_model_is_unproven(kind):
    (reason,) = validate(kind(), (example(),)).verdict.unproven
    assert reason.message.startswith("replay: backward_1_")


def test_wrong_arguments_raise_the_errors_of_pytorch():
    plain, recorded = WrongArguments(), WrongArguments()
    plain(example())
    record(recorded, (example(),))
    assert recorded.words == plain.words


def test_edges_of_a_backward_pass():
    history = ModelHistory(record(AddsUp(), (example(),)))
    passes = [operation for operation in history.operations if operation.layer_type == "backward"]
    of_latent = [one for one in passes if one.tensor_shape == (2, 4)]
    assert len(of_latent) == 3
    assert history.operations[-1].parent_layers == (of_latent[-1].label,)
    assert of_latent[0].label in of_latent[1].parent_layers


class TwoFunctions(Trains):
    """A view in a custom function of what another one made requires gradients, as its base does."""

    def forward(self, x):
        return Same.apply(Squared.apply(self.fc(x)).relu())


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_a_view_of_what_a_custom_function_made():
    verdict = validate(TwoFunctions(), (example(),)).verdict
    assert verdict.status is Status.PASSED, verdict.words
