from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchlens.checks import cache
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

TOKENS = torch.randint(0, 20, (1, 12), generator=torch.Generator().manual_seed(0))


class DecoderForCausalLM(nn.Module):
    """Attention with a cache of keys and values; subclasses count or mask wrongly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.place = nn.Embedding(32, 8)
        self.project = nn.Linear(8, 24)

    def forward(self, tokens: torch.Tensor, cache: Any = None, use_cache: bool = False) -> dict[str, Any]:
        past = cache[0].size(1) if cache is not None else 0
        x = self.embed(tokens) + self.placed(past, tokens.size(1))
        q, k, v = self.project(x).chunk(3, -1)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        return {"states": self.attend(q, k, v, past), "cache": (k, v)}

    def placed(self, past: int, count: int) -> torch.Tensor:
        return self.place(torch.arange(past, past + count))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: int) -> torch.Tensor:
        mask = torch.ones(q.size(1), k.size(1), dtype=torch.bool).tril(past)
        return F.scaled_dot_product_attention(q, k, v, mask)


class CountsFromZeroForCausalLM(DecoderForCausalLM):
    """Gives each step the first position."""

    def placed(self, past: int, count: int) -> torch.Tensor:
        return self.place(torch.arange(count))  # from zero


class MasksFromTheLeftForCausalLM(DecoderForCausalLM):
    """Aligns the mask of one query with the first key."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: int) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # the first key alone


class Recurrent(nn.Module):
    """Has a state in place of a cache."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scan = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor, state: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        y, state = self.scan(x, state)
        return {"states": y, "state": state}


class Forgets(DecoderForCausalLM):
    """Returns no cache."""

    def forward(self, tokens: torch.Tensor, cache: Any = None, use_cache: bool = False) -> dict[str, Any]:
        return {"states": super().forward(tokens)["states"]}


class Ignores(DecoderForCausalLM):
    """Mixes no positions, counts none, and keeps what nobody reads."""

    def forward(self, tokens: torch.Tensor, cache: Any = None, use_cache: bool = False) -> dict[str, Any]:
        x = self.embed(tokens)
        return {"states": x, "cache": (x if cache is None else torch.cat([cache[0], x], 1),)}


@pytest.mark.parametrize(
    ("model", "operation", "line"),
    [
        (CountsFromZeroForCausalLM, "arange_", "# from zero"),
        (MasksFromTheLeftForCausalLM, "scaleddotproductattention_", "# the first key alone"),
    ],
)
def test_a_step_that_counts_or_masks_wrongly_is_found(model: Any, operation: str, line: str) -> None:
    result = check("cache", model(), TOKENS)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "with a dynamic cache, first in decode step 1" in result.failure.message
    assert result.operation.startswith(operation)
    assert line_of(result).endswith(line)


@pytest.mark.parametrize(("model", "x"), [(DecoderForCausalLM, TOKENS), (Recurrent, torch.rand(1, 12, 8))])
def test_a_cache_and_a_state_that_carry_all_pass(model: Any, x: torch.Tensor) -> None:
    result = check("cache", model(), x, ids="tokens" if x is TOKENS else "x")
    assert result.status is CheckStatus.PASSED
    assert result.compared >= 2
    assert "a static cache: the model's class does not say that it takes one" in result.unseen[-1]


def test_as_many_examples_as_positions_are_no_table_of_pairs() -> None:
    square = torch.randint(0, 20, (12, 12), generator=torch.Generator().manual_seed(0))
    assert check("cache", DecoderForCausalLM(), square).status is CheckStatus.PASSED
    assert check("cache", CountsFromZeroForCausalLM(), square).status is CheckStatus.FAILED


def test_what_has_no_cache_or_does_not_read_it_is_not_applicable() -> None:
    assert "forward takes no cache" in check("cache", nn.Linear(8, 8), torch.rand(1, 12, 8)).reason
    assert "does not say that it is causal" in check("cache", Recurrent(), torch.rand(1, 12, 8)).reason
    assert "returns no 'cache'" in check("cache", Forgets(), TOKENS, ids="tokens").reason
    assert "no output depends on the cache" in check("cache", Ignores(), TOKENS, ids="tokens").reason
    assert "too few: 7 are needed" in check("cache", DecoderForCausalLM(), TOKENS[:, :6]).reason


def test_a_check_that_passes_no_cache_on_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage of the check."""
    arguments = cache._Decoder.arguments
    monkeypatch.setattr(cache._Decoder, "arguments", lambda self, step, _: arguments(self, step, None))
    assert check("cache", CountsFromZeroForCausalLM(), TOKENS).status is CheckStatus.NOT_APPLICABLE
