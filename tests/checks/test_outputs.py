from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.checks import outputs
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

IDS = torch.randint(0, 20, (2, 6), generator=torch.Generator().manual_seed(0))


class Text(nn.Module):
    """Takes ids or embeddings, and returns a dict or a tuple, with hidden states and attentions if it is asked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 8)
        self.query = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def embed(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        return x * 3  # type: ignore[no-any-return]

    def scores(self, x: torch.Tensor, asked: bool) -> torch.Tensor:
        return self.query(x) @ x.mT / 8**0.5  # type: ignore[no-any-return]

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        return_dict: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> Any:
        x = self.embed(input_ids, inputs_embeds)
        weights = self.scores(x, output_attentions).softmax(-1)
        hidden = weights @ x  # attends
        logits = self.last(hidden)
        found = {"logits": logits, "pooled": logits[:, 0]}
        if output_hidden_states:
            found["hidden_states"] = hidden
        if output_attentions:
            found["attentions"] = weights
        return found if return_dict else tuple(found.values())


class ScaledIds(Text):
    def embed(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        return self.embedding(input_ids) * 3 if inputs_embeds is None else inputs_embeds  # scales ids


class Unscaled(Text):
    def scores(self, x: torch.Tensor, asked: bool) -> torch.Tensor:
        scores: torch.Tensor = self.query(x) @ x.mT
        if asked:
            return scores / 8  # another scale
        return scores / 8**0.5  # type: ignore[no-any-return] # the scale


class Renamed(Text):
    """Returns other logits as a tuple."""

    def forward(self, input_ids: torch.Tensor | None = None, return_dict: bool = True) -> Any:  # type: ignore[override]
        x = self.embedding(input_ids)
        logits = self.last(x)
        if not return_dict:
            return logits, logits[:, 0]
        logits = logits.tanh()  # in the dict only
        return {"logits": logits, "pooled": logits[:, 0]}


class Parted(nn.Module):
    """Has features and a head."""

    def __init__(self, normed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 8)
        self.last = nn.Linear(8, 4)
        self.normed = normed

    def forward_features(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(ids)  # type: ignore[no-any-return]

    def forward_head(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x)  # type: ignore[no-any-return]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.forward_features(ids)
        return self.forward_head(nn.functional.layer_norm(x, (8,)) if self.normed else x)  # norms


@pytest.mark.parametrize(
    ("model", "words", "way"),
    [
        (ScaledIds(), "# scales ids", "with inputs_embeds"),
        (Unscaled(), "# the scale", "with output_attentions=True"),
        (Renamed(), "# in the dict only", "with return_dict=False"),
        (Parted(normed=True), "# norms", "by forward_features and forward_head"),
    ],
)
def test_a_way_that_computes_something_else_is_found(model: nn.Module, words: str, way: str) -> None:
    result = check("outputs", model, IDS)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert way in result.failure.message
    assert line_of(result).endswith(words)


def test_without_an_operation_that_differs_it_is_the_one_that_makes_the_output() -> None:
    class Swapped(Text):
        """Returns another tensor where attentions are asked for, of operations that are the same."""

        def forward(self, input_ids: torch.Tensor, output_attentions: bool = False) -> Any:  # type: ignore[override]
            x = self.embedding(input_ids)
            one = self.query(x)  # the plain output
            two = self.query(x.relu())
            asked = (x,) if output_attentions else ()
            return {"first": self.last(x), "scores": two if output_attentions else one, "attentions": asked}

    result = check("outputs", Swapped(), IDS, ways="attentions")
    assert result.failure is not None
    assert result.failure.message.startswith("output 'scores' differs")
    assert line_of(result).endswith("# the plain output")


def test_a_weight_that_the_features_write_is_put_back() -> None:
    class Decaying(Parted):
        def forward_features(self, ids: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.embedding.weight.mul_(0.999)
            return super().forward_features(ids)

    model = Decaying()
    before = model.embedding.weight.detach().clone()
    assert check("outputs", model, IDS).status is CheckStatus.PASSED
    assert torch.equal(before, model.embedding.weight)


def test_a_dict_where_a_tuple_was_asked_for_is_found() -> None:
    class Always(Text):
        def forward(self, input_ids: torch.Tensor, return_dict: bool = True) -> Any:  # type: ignore[override]
            return {"logits": self.last(self.embedding(input_ids))}

    result = check("outputs", Always(), IDS)
    assert result.failure is not None
    assert result.failure.message == "return_dict=False returns dict"


@pytest.mark.parametrize(("model", "compared"), [(Text(), 8), (Parted(), 1)])
def test_ways_that_agree_pass(model: nn.Module, compared: int) -> None:
    result = check("outputs", model, IDS)
    assert (result.status, result.compared) == (CheckStatus.PASSED, compared)


def test_the_ways_are_an_option_and_a_model_without_them_is_not_applicable() -> None:
    result = check("outputs", Unscaled(), IDS, ways="return_dict,inputs_embeds")
    assert (result.status, result.notes) == (CheckStatus.PASSED, ("with return_dict=False", "with inputs_embeds"))
    assert "forward has none of these ways" in check("outputs", nn.Linear(8, 8), torch.rand(2, 8)).reason


def test_an_output_that_is_asked_for_and_not_there_is_not_looked_at() -> None:
    class Deaf(Text):
        def forward(self, input_ids: torch.Tensor, output_attentions: bool = False) -> Any:  # type: ignore[override]
            return self.last(self.embedding(input_ids))

    assert "the output holds nothing more then" in check("outputs", Deaf(), IDS).reason


def test_padding_is_known_from_ids_only_so_ids_without_it_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Config:
        pad_token_id = 5

    class Padded(Text):
        config = Config()

        def embed(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
            x = super().embed(input_ids, inputs_embeds)
            return x if input_ids is None else x.masked_fill((input_ids == 5)[..., None], 0)

    ids = IDS.clone()
    ids[0, 0] = 5
    assert check("outputs", Padded(), ids).status is CheckStatus.PASSED
    monkeypatch.setattr(outputs, "_without", lambda ids, padding: ids)
    assert check("outputs", Padded(), ids).status is CheckStatus.FAILED


def test_a_tuple_in_another_order_is_found() -> None:
    class Reordered(Text):
        def forward(self, input_ids: torch.Tensor | None = None, return_dict: bool = True) -> Any:  # type: ignore[override]
            x = self.embedding(input_ids)
            logits = self.last(x)  # comes second
            return {"logits": logits, "hidden": x} if return_dict else (x, logits)

    result = check("outputs", Reordered(), IDS)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# comes second")
    assert result.failure is not None
    assert "tensor 0 of the output has shape" in result.failure.message


def test_a_write_where_more_is_asked_for_is_found_at_its_line() -> None:
    class Writing(Text):
        def scores(self, x: torch.Tensor, asked: bool) -> torch.Tensor:
            scores = super().scores(x, asked)
            if asked:
                scores.mul_(1.1)  # writes
            return scores

    result = check("outputs", Writing(), IDS, ways="attentions")
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# writes")
