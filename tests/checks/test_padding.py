from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchlens.checks import padding
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

TOKENS = torch.randint(1, 20, (1, 12), generator=torch.Generator().manual_seed(0))


class Encoder(nn.Module):
    """Attention over embedded tokens with positions; subclasses leave out the mask somewhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.place = nn.Embedding(32, 8)
        self.project = nn.Linear(8, 24)

    def forward(
        self, tokens: torch.Tensor, attention_mask: torch.Tensor | None = None, position_ids: Any = None
    ) -> Any:
        if attention_mask is None:
            attention_mask = torch.ones_like(tokens)
        if position_ids is None:
            position_ids = torch.arange(tokens.size(1))
        return self.mix(self.embed(tokens) + self.place(position_ids), attention_mask.bool())

    def mix(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        q, k, v = self.project(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, mask[:, None])


class AddsOne(Encoder):
    """Hides padded positions by an addition that is too small."""

    def mix(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) + (mask[:, None].float() - 1)
        return scores.softmax(-1) @ v  # still sees them


class MeanOfAll(Encoder):
    """Masks the attention, and not the mean."""

    def mix(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        states = super().mix(x, mask)
        return {"states": states, "pooled": states.mean(1)}  # the mean of all


class MeanOfReal(Encoder):
    """Masks both."""

    def mix(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        states = super().mix(x, mask)
        kept = states * mask[..., None]
        return {"states": states, "pooled": kept.sum(1) / mask.sum(1, keepdim=True)}


class Unplaced(Encoder):
    """Counts its positions itself, padded ones included."""

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        return super().forward(tokens, attention_mask)


def test_a_softmax_that_sees_padded_positions_is_found() -> None:
    result = check("padding", AddsOne(), TOKENS)
    assert result.status is CheckStatus.FAILED
    assert result.operation.startswith("softmax_")
    assert line_of(result).endswith("# still sees them")


def test_a_mean_over_padded_positions_is_found_on_the_right() -> None:
    result = check("padding", MeanOfAll(), TOKENS)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert result.failure.message.startswith("output 'pooled' differs padded on the right")
    assert result.operation.startswith("mean_")
    assert line_of(result).endswith("# the mean of all")


def test_values_at_padded_positions_that_are_read_are_found_at_the_same_shape() -> None:
    class Sees(AddsOne, Unplaced):
        pass

    result = check("padding", Sees(), TOKENS, sides="left")
    assert result.failure is not None
    assert result.failure.message.startswith("the output changes at real positions when values at the padded")
    assert line_of(result).endswith("# still sees them")


@pytest.mark.parametrize("model", [Encoder, MeanOfReal])
def test_masks_everywhere_pass_on_both_sides(model: type[Encoder]) -> None:
    result = check("padding", model(), TOKENS)
    assert result.status is CheckStatus.PASSED
    assert result.compared >= 4


def test_without_positions_the_left_is_compared_at_the_same_shape_alone() -> None:
    result = check("padding", Unplaced(), TOKENS)
    assert (result.status, result.compared) == (CheckStatus.PASSED, 3)
    assert "counts padded ones" in result.unseen[0]


def test_a_decoder_is_to_give_the_same_when_padded_on_the_left() -> None:
    class CountingForCausalLM(Unplaced):
        pass

    result = check("padding", CountingForCausalLM(), TOKENS)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "padded on the left" in result.failure.message


def test_torch_transformers_take_masks_that_hide() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    result = check("padding", model, torch.rand(1, 12, 8))
    assert result.status is CheckStatus.PASSED
    assert result.compared == 4


def test_as_many_channels_as_positions_are_no_table_of_pairs() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    assert check("padding", model, torch.rand(1, 8, 8)).status is CheckStatus.PASSED


class OneAtReal(nn.Module):
    """Adds the mean of the positions where its mask is 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)

    def forward(self, tokens: torch.Tensor, padding_mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(tokens)
        mask = torch.ones_like(tokens) if padding_mask is None else padding_mask
        return x + self.pooled(x, mask.to(x.dtype).unsqueeze(-1))

    def pooled(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)


@pytest.mark.parametrize("given", [(), (torch.ones(1, 12, dtype=torch.long),)])
def test_whether_a_padding_mask_hides_where_it_is_true_is_seen(given: tuple[torch.Tensor, ...]) -> None:
    class MeanOfMore(OneAtReal):
        def pooled(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (x * mask).mean(1, keepdim=True)  # divides by all

    assert check("padding", OneAtReal(), TOKENS, *given).status is CheckStatus.PASSED
    result = check("padding", MeanOfMore(), TOKENS, *given)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# divides by all")


def test_any_argument_that_ends_in_padding_mask_is_found() -> None:
    class Ignores(OneAtReal):
        def forward(self, tokens: torch.Tensor, encoder_padding_mask: Any = None) -> torch.Tensor:  # type: ignore[override]
            x = self.embed(tokens)
            return x + x.mean(1, keepdim=True)  # of all

    result = check("padding", Ignores(), TOKENS)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# of all")


def test_a_model_that_mixes_no_positions_proves_nothing() -> None:
    class Alone(Encoder):
        def mix(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.project(x)

    result = check("padding", Alone(), TOKENS)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "without the mask, either" in result.reason


def test_what_is_not_known_is_said() -> None:
    assert "'mask' among its options names" in check("padding", nn.Linear(8, 8), torch.rand(1, 12, 8)).reason
    assert "too few: 7 are needed" in check("padding", Encoder(), TOKENS[:, :6]).reason
    assert "hides positions itself" in check("padding", Encoder(), TOKENS, torch.zeros(1, 12)).reason
    two = check("padding", nn.Bilinear(8, 8, 4), torch.rand(1, 12, 8), torch.rand(1, 12, 8), mask="input2")
    assert "'ids' among its options names one of input1, input2" in two.reason


class MaxOfAll(nn.Module):
    """Masks the attention, and not the maximum of what was embedded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(100, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(ids)
        hidden = None if attention_mask is None else attention_mask == 0
        x = x + self.attend(x, x, x, key_padding_mask=hidden)[0]
        if hidden is not None and self.training:
            x = x.masked_fill(hidden[..., None], float("-inf"))
        return x.amax(1)


@pytest.mark.parametrize(("masks", "status"), [(False, CheckStatus.FAILED), (True, CheckStatus.PASSED)])
def test_padded_positions_get_ids_that_the_sequence_does_not_have(masks: bool, status: CheckStatus) -> None:
    ids = torch.randint(0, 100, (1, 12), generator=torch.Generator().manual_seed(0))
    result = check("padding", MaxOfAll().train(masks), ids)
    assert result.status is status
    assert result.operation.startswith("" if masks else "amax_")


def test_a_check_that_pads_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage of the check: a mask that hides nothing."""
    monkeypatch.setattr(padding, "_padded", _ones_padded)
    assert check("padding", Encoder(), TOKENS).status is CheckStatus.FAILED


_pad = padding._padded


def _ones_padded(tensor: torch.Tensor, dim: int, left: bool, value: float | None) -> torch.Tensor:
    return _pad(tensor, dim, left, 1 if bool((tensor == 1).all()) else value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask": "attention_maks"}, "mask: forward has no argument 'attention_maks'; did you mean 'attention_mask'?"),
        ({"positions": "place"}, "positions: forward has no argument 'place'; did you mean 'places'?"),
        ({"ids": "id"}, "ids: the inputs hold no tensor 'id'; they hold ids (did you mean 'ids'?)"),
    ],
)
def test_an_argument_that_forward_does_not_have_is_named_with_the_nearest(options: dict[str, str], words: str) -> None:
    class Summed(nn.Module):
        def forward(
            self, ids: torch.Tensor, attention_mask: torch.Tensor | None = None, places: torch.Tensor | None = None
        ) -> torch.Tensor:
            return ids.float().cumsum(1)

    result = check("padding", Summed(), torch.randint(0, 9, (1, 12)), **options)
    assert result.status is CheckStatus.ERROR
    assert result.failure is not None
    assert result.failure.message == words
