"""The checks of sequences with models of transformers, whose arguments, caches and implementations they know."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
TOKENS = torch.randint(3, 90, (1, 16), generator=torch.Generator().manual_seed(0))
SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaModel(transformers.LlamaConfig(**SIZES)).eval()


@pytest.fixture(scope="module")
def bert() -> Any:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SIZES)).eval()


@pytest.mark.parametrize("name", ["causal", "padding", "cache", "packed", "attention"])
def test_a_decoder_passes(name: str, llama: Any) -> None:
    result = check(name, llama, TOKENS)
    assert result.status is CheckStatus.PASSED
    assert not result.redrawn
    if name == "cache":
        assert not result.unseen  # the static one was compared, too


def test_an_encoder_passes_and_is_not_taken_for_a_decoder(bert: Any) -> None:
    assert check("padding", bert, TOKENS).status is CheckStatus.PASSED
    assert "with attn_implementation 'eager'" in check("attention", bert, TOKENS).notes[0]
    for name in ("causal", "cache", "packed"):
        assert check(name, bert, TOKENS).status is CheckStatus.NOT_APPLICABLE


def test_an_encoder_that_is_said_to_be_causal_fails_at_its_attention(bert: Any) -> None:
    result = check("causal", bert, TOKENS, ids="input_ids")
    assert result.status is CheckStatus.FAILED
    assert result.operation.startswith("scaleddotproductattention_")


def test_an_encoder_and_decoder_is_causal_along_the_decoder() -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "vocab_size": 99}
    model = transformers.T5Model(transformers.T5Config(**sizes)).eval()
    result = check("causal", model, TOKENS, None, TOKENS.flip(1))
    assert result.status is CheckStatus.PASSED
    assert "cross_attention_cache" in result.unseen[0]  # the decoder decides on none of it
