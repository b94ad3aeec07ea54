from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y.detach()  # cut
        return self.second(y)  # type: ignore[no-any-return]


class Quiet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(6, 1)
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = self.scale(x)  # quiet
        return self.layer(x) * scale  # type: ignore[no-any-return]


class Indexing(nn.Module):
    """Reads a parameter only to choose another one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 2)
        self.experts = nn.Parameter(torch.rand(2, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.router(x).argmax(-1)  # index
        return x * self.experts[chosen]


class Nearest(nn.Module):
    """Takes the nearest of some codes, without a way around the choice for the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 6)
        self.codes = nn.Parameter(torch.rand(5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.encoder(x)
        nearest = torch.cdist(y, self.codes).min(-1).indices  # nearest
        code = self.codes[nearest]
        (y - code).square()
        return code


class Dead(nn.Module):
    """Computes what nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.side = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side(x).tanh()  # dead
        return self.layer(x)  # type: ignore[no-any-return]


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.extra = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class Rooted(nn.Module):
    """Takes a square root, and chooses another value where it is infinitely steep; or adds an epsilon before."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        y = y - y.amin()
        root = (y + self.eps).sqrt()  # root
        return torch.where(y > 0, root, y) + y.exp()


class Saturated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (self.layer(x) - 100).relu()  # flat
        return self.last(y + x)  # type: ignore[no-any-return]


class Attending(nn.Module):
    """Attends with a bias, which one key makes useless."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.bias = nn.Parameter(torch.zeros(1, 1))
        self.value = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias, value = self.bias * x[..., 0].unsqueeze(1), self.value(x)  # of each key
        if self.fused:
            return F.scaled_dot_product_attention(x, x, value, bias)
        return (x @ x.transpose(-1, -2) + bias).softmax(-1) @ value


class Squeezed(nn.Module):
    """Scales channels by a rectifier of few units, all of which these weights switch off; or by one of many."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(6, units), nn.Linear(units, 6)
        nn.init.constant_(self.down.weight, -1.0)
        nn.init.constant_(self.down.bias, -0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squeezed = self.down(x.mean(0, keepdim=True)).relu()  # off
        return x * self.up(squeezed).sigmoid()


class Residual(nn.Module):
    """Begins as the identity: its branch is multiplied by zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(6, 6)
        self.gamma = nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gamma * self.branch(x).tanh()


class WithHead(nn.Module):
    """Has a head for train mode only, and experts of which the input chooses one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.experts[int(x[0, 0] > x[0, 1])](x)
        return (y, self.head(y)) if self.training else y


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubling.apply(self.layer(x))  # type: ignore[no-any-return,no-untyped-call]


CUTS = {
    Detached: ("# cut", "detach returns a tensor without gradients", "first.weight"),
    Quiet: ("# quiet", "linear runs without gradients (torch.no_grad", "scale.weight"),
    Indexing: ("# index", "argmax returns int64, through which no gradient flows", "router.weight"),
    Nearest: ("# nearest", "min returns int64, through which no gradient flows", "encoder.weight"),
    Dead: ("# dead", "nothing reads the result of tanh", "side.weight"),
}


@pytest.mark.parametrize("kind", CUTS)
def test_the_operation_that_cuts_the_way_is_found(kind: type[nn.Module]) -> None:
    line, why, name = CUTS[kind]
    result = check("gradients", kind().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith(line)
    assert result.failure is not None
    assert why in result.failure.message
    assert f"'{name}'" in result.failure.message


def test_a_parameter_that_nothing_reads_is_named_unless_it_is_ignored() -> None:
    result = check("gradients", Unused(), X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert (
        "reaches 'extra.weight', 'extra.bias': no operation reads it; module 'extra' is not" in result.failure.message
    )
    result = check("gradients", Unused(), X, ignore="extra.*")
    assert (result.status, result.compared) == (CheckStatus.PASSED, 2)
    assert "ignored: 'extra.weight', 'extra.bias'" in result.unseen


def test_an_infinite_slope_is_found_and_an_epsilon_passes() -> None:
    torch.manual_seed(0)
    model = Rooted(0.0)
    result = check("gradients", model, X)
    assert result.status is CheckStatus.FAILED
    assert result.operation == "sqrt_1_5"
    assert line_of(result).endswith("# root")
    assert result.failure is not None
    assert result.failure.values.endswith("is 0.0, its gradient nan")
    assert all(parameter.grad is None for parameter in model.parameters())
    assert check("gradients", Rooted(1e-6), X).status is CheckStatus.PASSED


def test_a_flat_operation_is_found() -> None:
    result = check("gradients", Saturated(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# flat")
    assert result.failure is not None
    assert result.failure.cause == "relu gets a gradient and passes on only zeros"


@pytest.mark.parametrize("fused", [True, False])
def test_attention_to_one_key_is_unseen_and_to_three_passes(fused: bool) -> None:
    result = check("gradients", Attending(fused=fused), torch.rand(2, 1, 4))
    assert (result.status, result.compared) == (CheckStatus.PASSED, 2)
    assert "'bias', which only lead to a softmax over one element" in result.unseen[0]
    result = check("gradients", Attending(fused=fused), torch.rand(2, 3, 4))
    assert (result.status, result.compared, result.unseen) == (CheckStatus.PASSED, 3, ())


def test_a_branch_that_begins_at_zero_passes_with_other_weights() -> None:
    result = check("gradients", Residual(), X)
    assert (result.status, result.redrawn) == (CheckStatus.PASSED, True)
    assert "as a factor is all zero" in result.notes[0]


def test_a_branch_that_a_frozen_norm_multiplies_by_zeros_passes_with_other_weights() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.Linear(6, 6)
            self.norm = nn.Module()
            self.norm.register_buffer("weight", torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.branch(x) * self.norm.weight  # type: ignore[operator]

    result = check("gradients", Frozen(), X)
    assert (result.status, result.redrawn) == (CheckStatus.PASSED, True)


def test_a_rectifier_of_few_units_may_be_off_by_chance_and_one_of_many_not() -> None:
    result = check("gradients", Squeezed(4), X)
    assert (result.status, result.redrawn) == (CheckStatus.PASSED, True)
    result = check("gradients", Squeezed(20), X)
    assert line_of(result).endswith("# off")


def test_a_head_of_train_mode_and_other_routes_pass_with_a_note() -> None:
    result = check("gradients", WithHead().eval(), X)
    assert result.status is CheckStatus.PASSED
    assert "only in train mode a gradient reaches 'head.weight', 'head.bias'" in result.notes
    assert "only on other inputs a gradient reaches 'experts." in result.notes[1]


def test_a_head_of_a_train_mode_that_does_not_run_is_unseen() -> None:
    class Refusing(Unused):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise ValueError("targets, please")
            return super().forward(x)

    result = check("gradients", Refusing().eval(), X)
    assert (result.status, result.compared) == (CheckStatus.PASSED, 2)
    assert "'extra.weight', 'extra.bias', as modules are not called in eval mode, and in train mode" in result.unseen[0]


class Picky(nn.Module):
    """Refuses a backward pass in eval mode, or in both modes."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.always = always

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        y.register_hook(self._refuse)
        return y  # type: ignore[no-any-return]

    def _refuse(self, gradient: torch.Tensor) -> None:
        if self.always or not self.training:
            raise AssertionError("train me in train mode")


def test_a_backward_pass_that_refuses_eval_mode_runs_in_train_mode() -> None:
    result = check("gradients", Picky(always=False).eval(), X)
    assert result.status is CheckStatus.PASSED
    assert "looked at in train mode, as in eval mode the backward pass raised AssertionError" in result.notes[0]
    assert check("gradients", Picky(always=True).eval(), X).status is CheckStatus.FAILED


def test_a_backward_pass_that_refuses_eval_mode_is_not_applicable_where_train_mode_refuses_the_input() -> None:
    class Refusing(Picky):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise ValueError("targets, please")
            return super().forward(x)

    result = check("gradients", Refusing(always=False).eval(), X)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "targets, please" in result.reason


def test_gradcheck_finds_a_wrong_backward() -> None:
    assert check("gradients", Custom(), X).status is CheckStatus.PASSED
    result = check("gradients", Custom(), X, gradcheck=True)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "not what differences give" in result.failure.message
    assert "Doubling" in result.failure.cause
    assert check("gradients", nn.Linear(6, 6), X, gradcheck=True).status is CheckStatus.PASSED


def test_models_that_are_not_to_be_trained_are_not_applicable() -> None:
    class Inferring(nn.Linear):
        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    class Classes(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).argmax(-1)

    assert "for inference" in check("gradients", Inferring(6, 6), X).reason
    assert "whole numbers" in check("gradients", Classes(6, 6), X).reason
    assert "requires_grad is False for all 2" in check("gradients", nn.Linear(6, 6).requires_grad_(False), X).reason
    assert check("gradients", nn.ReLU(), X).reason == "the model has no parameters"


def test_gradients_that_the_user_holds_stay() -> None:
    model = Detached()
    model(X).sum().backward()
    before = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    held = model.second.weight.grad
    check("gradients", model, X)
    assert model.second.weight.grad is held
    for name, parameter in model.named_parameters():
        former = before[name]
        assert parameter.grad is None if former is None else torch.equal(parameter.grad, former)  # type: ignore[arg-type]
