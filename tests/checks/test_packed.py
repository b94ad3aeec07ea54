from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchlens.checks import packed
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

TOKENS = torch.randint(0, 20, (1, 16), generator=torch.Generator().manual_seed(0))


class PackingForCausalLM(nn.Module):
    """Attention within the sequences that positions tell apart; subclasses let something pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.place = nn.Embedding(32, 8)
        self.project = nn.Linear(8, 24)
        self.conv = nn.Conv1d(8, 8, 3)

    def forward(self, tokens: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        if position_ids is None:
            position_ids = torch.arange(tokens.size(1))[None]
        return self.mix(self.embed(tokens) + self.place(position_ids), (position_ids == 0).cumsum(1))

    def mix(self, x: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, (owner[:, :, None] == owner[:, None]).tril())


class AttendsToAllForCausalLM(PackingForCausalLM):
    """Knows one sequence only."""

    def mix(self, x: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # across sequences


class ConvolvesForCausalLM(PackingForCausalLM):
    """Masks the attention, and not the convolution."""

    def mix(self, x: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
        y = self.conv(F.pad(x.transpose(1, 2), (2, 0)))  # reads the sequence before
        return super().mix(x + y.transpose(1, 2), owner)


class MasksByHandForCausalLM(PackingForCausalLM):
    """Computes all scores, and masks those of other sequences."""

    def mix(self, x: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        apart = ~(owner[:, :, None] == owner[:, None]).tril()
        return (q @ k.transpose(1, 2) / 8**0.5).masked_fill(apart, float("-inf")).softmax(-1) @ v


@pytest.mark.parametrize(
    ("model", "operation", "line"),
    [
        (AttendsToAllForCausalLM, "scaleddotproductattention_", "# across sequences"),
        (ConvolvesForCausalLM, "conv1d_", "# reads the sequence before"),
    ],
)
def test_what_passes_from_one_sequence_to_the_next_is_found(model: Any, operation: str, line: str) -> None:
    result = check("packed", model(), TOKENS)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "as the second of two sequences" in result.failure.message
    assert result.operation.startswith(operation)
    assert line_of(result).endswith(line)


@pytest.mark.parametrize("model", [PackingForCausalLM, MasksByHandForCausalLM])
def test_sequences_that_are_kept_apart_pass(model: type[PackingForCausalLM]) -> None:
    result = check("packed", model(), TOKENS)
    assert (result.status, result.compared) == (CheckStatus.PASSED, 2)


def test_what_cannot_be_packed_is_not_applicable() -> None:
    class Plain(PackingForCausalLM):
        pass

    class AloneForCausalLM(PackingForCausalLM):
        def mix(self, x: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
            return self.project(x)

    assert "forward takes no position_ids" in check("packed", nn.Linear(8, 8), torch.rand(1, 12, 8)).reason
    assert "does not say that it is causal" in check("packed", Plain(), TOKENS).reason
    assert "nothing to keep apart" in check("packed", AloneForCausalLM(), TOKENS).reason


def test_a_check_that_does_not_begin_positions_anew_fails_the_right_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage of the check: positions that count on."""
    placed = packed._placed
    monkeypatch.setattr(packed, "_placed", lambda sequence, name, *lengths: placed(sequence, name, sum(lengths)))
    assert check("packed", PackingForCausalLM(), TOKENS).status is CheckStatus.FAILED
