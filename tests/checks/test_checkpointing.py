from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchlens.checks import checkpointing
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import TwoLayers
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(4, 8, generator=torch.Generator().manual_seed(0))


class Checkpointed(TwoLayers):
    """Runs its middle part again in the backward pass."""

    use_checkpoint: bool
    options: ClassVar[dict[str, Any]] = {"use_reentrant": False}

    def __init__(self) -> None:
        super().__init__()
        self.use_checkpoint = False
        self.middle = nn.Linear(8, 8)

    def part(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x.tanh(), 0.5, self.training)
        return self.middle(x)  # in the checkpoint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = checkpoint(self.part, y, **self.options) if self.use_checkpoint else self.part(y)
        return self.last(y)  # type: ignore[no-any-return]


class Reentrant(Checkpointed):
    options: ClassVar[dict[str, Any]] = {"use_reentrant": True}


class OtherMask(Checkpointed):
    options: ClassVar[dict[str, Any]] = {"use_reentrant": False, "preserve_rng_state": False}


class Counting(Checkpointed):
    """Counts its calls, and computes with the number."""

    calls = 0

    def part(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.middle(x * self.calls)  # counts


class SwitchInTheClass(OtherMask):
    use_checkpoint = False

    def __init__(self) -> None:
        super().__init__()
        del self.use_checkpoint


class SwitchInTheConfig(OtherMask):
    """Reads the switch from an object, as each of its parts could."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_checkpoint=False)

    @property  # type: ignore[misc]
    def use_checkpoint(self) -> bool:  # type: ignore[override]
        return self.config.use_checkpoint  # type: ignore[no-any-return]

    @use_checkpoint.setter
    def use_checkpoint(self, value: bool) -> None: ...


class AtTheInput(Checkpointed):
    options: ClassVar[dict[str, Any]] = {"use_reentrant": True}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(self.part, x, **self.options) if self.use_checkpoint else self.part(x)
        return self.last(y)  # type: ignore[no-any-return]


class WithMethod(nn.Module):
    """Has a method that switches it on, or refuses."""

    def __init__(self, refuses: bool = False) -> None:
        super().__init__()
        self.inner = Checkpointed()
        self.refuses = refuses

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        assert not self.refuses, "not supported"
        self.inner.use_checkpoint = enable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("model", "words"), [(OtherMask(), "# in the checkpoint"), (Counting(), "# counts")])
def test_what_computes_otherwise_when_it_runs_again_is_found(model: nn.Module, words: str) -> None:
    before = model.state_dict()["middle.weight"].clone()
    result = check("checkpointing", model, X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith(words)
    assert result.operation.startswith("linear_2_")
    assert result.failure is not None
    assert result.failure.message.startswith("the gradient of 'middle.weight' differs with checkpointing")
    assert torch.equal(before, model.state_dict()["middle.weight"])
    assert not model.use_checkpoint
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_reentrant_checkpoint_without_gradients_at_its_inputs_is_found() -> None:
    result = check("checkpointing", AtTheInput(), X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert result.failure.message == "no gradient reaches 'middle.weight', 'middle.bias' with checkpointing"
    assert line_of(result).endswith("# in the checkpoint")


def test_what_raises_when_it_runs_again_is_found() -> None:
    class Growing(Counting):
        def part(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.middle(x.repeat(self.calls, 1).relu())[: len(x)]  # type: ignore[no-any-return]

    result = check("checkpointing", Growing(), X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "CheckpointError" in result.failure.message


class Block(TwoLayers):
    """Needs the function that its model's method sets, as blocks of diffusers do."""

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gradient_checkpointing:
            return self.function(self.first, x)  # type: ignore[no-any-return,operator]
        return self.first(x)  # type: ignore[no-any-return]


class Switching(nn.Module):
    """Sets what its blocks need."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.last = nn.Linear(8, 2)

    def enable_gradient_checkpointing(self) -> None:
        self.block.gradient_checkpointing = True
        self.block.function = partial(checkpoint, use_reentrant=False)  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(x).tanh())  # type: ignore[no-any-return]


class Unsupported(Switching):
    supports_gradient_checkpointing = False


def test_an_attribute_that_does_not_suffice_and_a_class_that_refuses_are_not_applicable() -> None:
    result = check("checkpointing", Block(), X)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert result.reason.startswith("with attribute 'gradient_checkpointing' on, the model raised AttributeError")
    assert "Unsupported says that it does not support" in check("checkpointing", Unsupported(), X).reason
    assert "has no switch" in check("checkpointing", nn.Sequential(Unsupported()), X).reason


@pytest.mark.parametrize(
    ("model", "compared"), [(Checkpointed(), 6), (Reentrant(), 6), (WithMethod(), 6), (Switching(), 4)]
)
def test_checkpoints_that_compute_the_same_again_pass(model: nn.Module, compared: int) -> None:
    result = check("checkpointing", model, X)
    assert (result.status, result.compared, result.unit) == (CheckStatus.PASSED, compared, "gradients")


def test_outputs_that_only_one_way_has_are_left_out() -> None:
    class Caching(Checkpointed):
        """Returns no cache with checkpointing, as transformers' models do."""

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
            y = self.first(x)
            return (super().forward(x), *(() if self.use_checkpoint else (y,)))

    assert check("checkpointing", Caching(), X).status is CheckStatus.PASSED


def test_without_a_comparison_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "is_plainly_explained", lambda *_: True)
    assert check("checkpointing", OtherMask(), X).status is CheckStatus.PASSED


def test_models_without_a_switch_that_works_are_not_applicable() -> None:
    class Idle(Checkpointed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.part(x))  # type: ignore[no-any-return]

    assert "has no switch" in check("checkpointing", nn.Linear(8, 8), X).reason
    assert "raised AssertionError: not supported" in check("checkpointing", WithMethod(refuses=True), X).reason
    assert "runs nothing again" in check("checkpointing", Idle(), X).reason
    assert "no parameter is trainable" in check("checkpointing", Checkpointed().requires_grad_(False), X).reason


@pytest.mark.parametrize("kind", [SwitchInTheClass, SwitchInTheConfig])
def test_a_switch_in_the_class_or_in_the_settings_is_used(kind: type[Checkpointed]) -> None:
    model = kind()
    result = check("checkpointing", model, X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "gradient" in result.failure.message
    assert model.use_checkpoint is False
    assert kind().use_checkpoint is False
