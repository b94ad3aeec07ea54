from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchlens.checks import sequences
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

TOKENS = torch.randint(0, 20, (1, 16), generator=torch.Generator().manual_seed(0))


class Decoder(nn.Module):
    """One layer of attention over embedded tokens; subclasses mix the positions in their own way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.project = nn.Linear(8, 24)
        self.out = nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.mix(self.embed(tokens)))

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Unmasked(Decoder):
    """Adds the mask after the softmax has divided by the sum over all positions."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        weights = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)  # over all positions
        return weights.tril() @ v


class Centred(Decoder):
    """Convolves on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.transpose(1, 2))  # reads the next position
        return y.transpose(1, 2).relu()


class Pooled(Decoder):
    """Takes away the mean of all positions."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(1, keepdim=True)  # no position


class Masked(Decoder):
    """Computes scores of all pairs, and masks the later ones."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2)).masked_fill(later, float("-inf"))
        return scores.softmax(-1) @ v


class Shifted(Decoder):
    """Convolves on the left alone, and scans forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3)
        self.scan = nn.LSTM(8, 8, batch_first=True)

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        return self.scan(y)[0]


@pytest.mark.parametrize(
    ("model", "operation", "line"),
    [
        (Unmasked, "softmax_1_9", "# over all positions"),
        (Centred, "conv1d_1_3", "# reads the next position"),
        (Pooled, "sub_1_3", "# no position"),
    ],
)
def test_an_operation_that_reads_later_positions_is_found(model: type[Decoder], operation: str, line: str) -> None:
    result = check("causal", model(), TOKENS, ids="tokens")
    assert result.status is CheckStatus.FAILED
    assert result.operation == operation
    assert line_of(result).endswith(line)


@pytest.mark.parametrize(("first", "last"), [(0, 4), (12, 16), (3, 6), (4, 8), (10, 12)])
def test_attention_in_both_directions_over_some_positions_is_found(first: int, last: int) -> None:
    class Partly(Decoder):
        def mix(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.project(x).chunk(3, -1)
            seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
            seen[first:last, first:last] = True
            return F.scaled_dot_product_attention(q, k, v, seen)

    result = check("causal", Partly(), TOKENS, ids="tokens")
    assert result.status is CheckStatus.FAILED
    assert result.operation.startswith("scaleddotproductattention_")


@pytest.mark.parametrize("value", [-torch.inf, torch.nan, -1e4])
def test_a_token_that_is_masked_in_the_output_hides_nothing(value: float) -> None:
    class Masking(Decoder):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            banned = torch.arange(20) == 3
            return super().forward(tokens).masked_fill(banned, value)

        def mix(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.project(x).chunk(3, -1)
            seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
            seen[11:12, 12:13] = True
            return F.scaled_dot_product_attention(q, k, v, seen)

    assert check("causal", Masking(), TOKENS, ids="tokens").status is CheckStatus.FAILED


def test_infinities_that_depend_on_later_inputs_are_found() -> None:
    class Banning(Decoder):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            banned = torch.zeros(*tokens.shape, 20, dtype=torch.bool)
            banned[:, 11:12, 3] = tokens[:, 12:13] % 2 == TOKENS[0, 12] % 2
            return super().forward(tokens).masked_fill(banned, -torch.inf)

    assert check("causal", Banning(), TOKENS, ids="tokens").status is CheckStatus.FAILED


def test_across_how_many_positions_it_did_not_look_is_said() -> None:
    tokens = torch.randint(0, 20, (1, 40), generator=torch.Generator().manual_seed(0))
    assert check("causal", Decoder(), TOKENS, ids="tokens").unseen == ()
    result = check("causal", Decoder(), tokens, ids="tokens")
    assert result.unseen == ("what is read across 32 of 39 positions",)


def test_a_model_that_mixes_examples_or_takes_one_alone_is_not_blamed_for_it() -> None:
    class Mixed(Decoder):
        def mix(self, x: torch.Tensor) -> torch.Tensor:
            return super().mix(x - x.mean(0) / len(x) + x / len(x))

    class Single(Decoder):
        def mix(self, x: torch.Tensor) -> torch.Tensor:
            assert len(x) == 1
            return super().mix(x)

    result = check("causal", Mixed(), TOKENS, ids="tokens")
    assert (result.status, result.unseen) == (CheckStatus.PASSED, ("what is read across 8 of 15 positions",))
    result = check("causal", Single(), TOKENS, ids="tokens")
    assert result.status is CheckStatus.PASSED
    assert "across other positions than 1, 7, 15: the model raised AssertionError in a batch of 12" in result.unseen[0]


def test_a_change_through_what_has_no_positions_is_said() -> None:
    failure = check("causal", Pooled(), TOKENS, ids="tokens").failure
    assert failure is not None
    assert "it reads mean_1_2, which has no positions, and changes" in failure.cause


@pytest.mark.parametrize("model", [Decoder, Masked, Shifted])
def test_masks_left_padding_and_scans_pass(model: type[Decoder]) -> None:
    result = check("causal", model(), TOKENS, ids="tokens")
    assert (result.status, result.compared, result.notes) == (CheckStatus.PASSED, 3, ())


@pytest.mark.parametrize("masked", [True, False])
def test_a_mask_of_pairs_is_cut_with_the_sequence(masked: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(12) if masked else None
    result = check("causal", model, torch.rand(2, 12, 8), mask, ids="src")
    assert result.status is (CheckStatus.PASSED if masked else CheckStatus.FAILED)


@pytest.mark.parametrize("masked", [True, False])
def test_as_many_channels_or_examples_as_positions_are_told_apart(masked: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(8) if masked else None
    wanted = CheckStatus.PASSED if masked else CheckStatus.FAILED
    assert check("causal", model, torch.rand(1, 8, 8), mask, ids="src").status is wanted
    assert check("causal", model, torch.rand(8, 8, 8), mask, ids="src").status is wanted


def test_positions_in_one_dimension_are_cut_with_the_sequence() -> None:
    class Placed(Unmasked):
        def forward(self, tokens: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return self.out(self.mix(self.embed(tokens) + self.embed(position_ids)))

    assert check("causal", Placed(), TOKENS, torch.arange(16), ids="tokens").operation.startswith("softmax_")


def test_the_model_says_that_it_is_causal_or_the_check_does_not_apply() -> None:
    class TinyForCausalLM(Unmasked):
        pass

    assert check("causal", TinyForCausalLM(), TOKENS).operation == "softmax_1_9"
    assert "'ids' among its options names the input" in check("causal", Unmasked(), TOKENS).reason
    assert "too few: 4 are needed" in check("causal", Decoder(), TOKENS[:, :3], ids="tokens").reason


def test_a_model_whose_later_outputs_do_not_depend_on_the_later_inputs_is_not_passed() -> None:
    class First(Decoder):
        def mix(self, x: torch.Tensor) -> torch.Tensor:
            return x * 0 + x[:, :1]

    result = check("causal", First(), TOKENS, ids="tokens")
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "when the inputs after the first position change: no output depends on the input" in result.reason


def test_a_check_that_changes_nothing_passes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage of the check: other tokens that are the same."""
    monkeypatch.setattr(sequences, "_other_tokens", lambda part, *_: part)
    assert check("causal", Unmasked(), TOKENS, ids="tokens").status is CheckStatus.NOT_APPLICABLE


def test_an_operation_that_python_runs_for_later_values_is_found() -> None:
    class Chooses(Decoder):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            y = super().forward(tokens)
            if tokens[0, -1] == TOKENS[0, -1]:
                y = y * 2  # for some last tokens
            return y

    result = check("causal", Chooses(), TOKENS, ids="tokens")
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# for some last tokens")
    assert result.failure is not None
    assert "Python reads a value" in result.failure.cause
