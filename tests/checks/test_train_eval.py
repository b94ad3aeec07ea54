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


class AlwaysDropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        y = F.dropout(y, 0.5)  # always
        return y.relu()


class Stuck(nn.Module):
    """Switches its own mode, and not that of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Dropout())

    def train(self, mode: bool = True) -> Stuck:
        self.training = mode
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)  # type: ignore[no-any-return]


class Counting(nn.Module):
    """Counts the passes in train mode, which eval mode reads."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.reads = reads
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        y = self.layer(x)
        return y / (1 + self.steps) if self.reads else y


class Merging(nn.Module):
    """Adds a small matrix to the weight at each step to eval mode, and never takes it away."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("delta", torch.rand(6, 6) * 1e-3)

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if not mode:
            self.layer.weight.data += self.delta  # type: ignore[operator]
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()  # type: ignore[no-any-return]


class Remembering(nn.Module):
    """Keeps its last activation, whatever the mode, and nobody reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(6, 6), nn.Dropout())
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.layer(x)
        return self.last * 2


def test_dropout_without_the_mode_is_found() -> None:
    result = check("train-eval", AlwaysDropping().train(), X)
    assert result.status is CheckStatus.FAILED
    assert result.operation == "dropout_1_2"
    assert line_of(result).endswith("# always")
    assert result.failure is not None
    assert "draws random numbers" in result.failure.cause


def test_a_module_that_stays_in_train_mode_is_named() -> None:
    model = Stuck()
    result = check("train-eval", model, X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "module 'body' (Sequential) after eval() is in train mode still" in result.failure.message
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("reads", [True, False])
def test_a_counter_that_moves_in_train_mode_is_named(reads: bool) -> None:
    model = Counting(reads=reads).eval()
    result = check("train-eval", model, X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "attribute 'steps'" in result.failure.message
    assert (model.steps, model.training) == (0, False)


def test_a_weight_that_is_merged_twice_is_named_and_put_back() -> None:
    torch.manual_seed(0)
    model = Merging().eval()
    before = model.layer.weight.detach().clone()
    result = check("train-eval", model, X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "parameter 'layer.weight'" in result.failure.message
    assert torch.equal(model.layer.weight, before)


def test_norms_dropout_and_spectral_norm_pass() -> None:
    norm = nn.BatchNorm1d(6, momentum=None)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
    model = nn.Sequential(layer, norm, nn.Dropout()).train()
    result = check("train-eval", model, X)
    assert result.status is CheckStatus.PASSED
    assert "moved 5 running statistics" in result.notes[0]
    assert "momentum None: '1'" in result.notes[1]
    assert int(norm.num_batches_tracked or 0) == 0


def test_an_activation_that_is_kept_in_each_mode_passes() -> None:
    assert check("train-eval", Remembering().eval(), X).status is CheckStatus.PASSED


class Logging(nn.Module):
    """Adds to a list at each call, and to another one in train mode only if it is asked to."""

    def __init__(self, *, counts_training: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.history: list[int] = []
        self.trained: list[int] = []
        self.counts_training = counts_training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.history.append(1)
        if self.training and self.counts_training:
            self.trained.append(1)
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_list_that_grows_at_each_call_passes_and_one_that_training_adds_to_is_named() -> None:
    for model in (Logging(counts_training=False), nn.Sequential(Logging(counts_training=False))):
        assert check("train-eval", model.eval(), X).status is CheckStatus.PASSED
    result = check("train-eval", nn.Sequential(Logging(counts_training=True)).eval(), X)
    assert result.failure is not None
    assert "leaves other values: attribute '0.trained.0'" in result.failure.message


def test_a_frozen_norm_passes_and_is_noted() -> None:
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Frozen:
            return super().train(False)

    result = check("train-eval", nn.Sequential(nn.Linear(6, 6), Frozen(6)), X)
    assert result.status is CheckStatus.PASSED
    assert "in eval mode still after train(): module '1' (Frozen)" in result.notes[0]


def test_one_example_that_batch_norm_refuses_is_doubled_and_a_refusal_is_unseen() -> None:
    class NeedsTargets(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise ValueError("targets, please")
            return x * 2

    result = check("train-eval", nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), X[:1])
    assert (result.status, result.unseen) == (CheckStatus.PASSED, ())
    result = check("train-eval", NeedsTargets(), X)
    assert result.status is CheckStatus.PASSED
    assert result.unseen == ("in train mode the model raised ValueError: targets, please",)


class Unregistered(nn.Module):
    """Keeps a norm in a list, where eval() does not reach it."""

    def __init__(self, *, is_switched: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.norms = [nn.BatchNorm1d(6)]
        self.is_switched = is_switched

    def train(self, mode: bool = True) -> Unregistered:
        super().train(mode)
        self.norms[0].train(mode or not self.is_switched)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norms[0](self.layer(x))  # type: ignore[no-any-return]


def test_a_norm_that_no_module_has_registered_must_follow_the_mode() -> None:
    result = check("train-eval", Unregistered(is_switched=False).eval(), X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert result.failure.message.startswith("module 'norms.0' (BatchNorm1d), which no module has registered")
    assert check("train-eval", Unregistered(is_switched=True).eval(), X).status is CheckStatus.PASSED
