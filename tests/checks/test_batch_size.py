from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(1, 16, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """Divides by the number of examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).relu()
        y = y / len(x)  # the size of the batch
        return self.layer(y)


class Coarse(nn.Module):
    """Goes through bfloat16 if there are several examples, as a fast path may."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        dtype = torch.bfloat16 if len(x) > 1 else torch.float32
        y = y.to(dtype)  # rounds
        return y.float().sin()


class Deep(nn.Module):
    """Rounds much, and the same way in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(30))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x


class Routed(nn.Module):
    """Takes one of two experts, whose scores are the same but for what the size of the batch adds."""

    def __init__(self, gap: float) -> None:
        super().__init__()
        self.gap = gap
        self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = len(x)
        score = x.sum(1)
        scores = torch.stack([score, score + self.gap * (1.5 - size)], 1)  # scores
        chosen = scores.argmax(1)  # the route
        made = torch.stack([expert(x) for expert in self.experts], 1)
        return made[torch.arange(size), chosen]


def test_a_division_by_the_number_of_examples_is_found() -> None:
    result = check("batch-size", Scaled().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the size of the batch")
    assert result.failure is not None
    assert "gives another result" in result.failure.cause


def test_a_path_that_rounds_more_is_found() -> None:
    result = check("batch-size", Coarse().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# rounds")
    assert result.error is not None
    assert result.limit is not None
    assert result.error > result.limit


def test_rounding_that_the_plain_run_has_too_passes() -> None:
    torch.manual_seed(0)
    assert check("batch-size", Deep().eval(), X).status is CheckStatus.PASSED
    assert check("batch-size", nn.Linear(16, 16), X, size=9).status is CheckStatus.PASSED


def test_a_route_that_flips_on_a_gap_below_the_explained_error_is_a_tie() -> None:
    torch.manual_seed(0)
    result = check("batch-size", Routed(1e-6).eval(), X)
    assert result.status is CheckStatus.TIE
    assert line_of(result).endswith("# the route")
    assert not result.fails


def test_a_route_that_flips_on_a_large_gap_fails() -> None:
    torch.manual_seed(0)
    result = check("batch-size", Routed(0.1).eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# scores")


def test_a_model_that_takes_no_example_alone_is_not_applicable() -> None:
    result = check("batch-size", nn.BatchNorm1d(4).train(), torch.rand(3, 4))
    assert "for one example alone the model raised ValueError" in result.reason


def test_random_numbers_are_not_applicable() -> None:
    result = check("batch-size", nn.Sequential(nn.Linear(16, 4), nn.Dropout()).train(), X)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "draws random numbers (dropout_1_2)" in result.reason


@pytest.mark.parametrize("name", ["batch-size", "shapes"])
def test_a_mean_loss_is_left_out_beside_what_has_rows(name: str) -> None:
    class WithLoss(nn.Module):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.cross_entropy(x, labels), "logits": x * 2}

    result = check(name, WithLoss(), torch.rand(2, 16), torch.tensor([3, 5]))
    assert result.status is CheckStatus.PASSED
    assert result.unseen[0] == "output 'loss' has no rows: its shape is () in a batch"


@pytest.mark.parametrize("name", ["batch-size", "shapes"])
@pytest.mark.parametrize("channels", [1, 4])
def test_a_squeeze_that_takes_the_dimension_of_the_batch_away_is_found(name: str, channels: int) -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, channels)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).squeeze().sin()  # of the batch, too

    result = check(name, Squeezed(), X)
    assert result.status is CheckStatus.FAILED
    assert result.operation == "squeeze_1_2"
    assert line_of(result).endswith("# of the batch, too")
    assert check("rows", Squeezed(), X).status is CheckStatus.PASSED


def test_rows_of_a_model_that_squeezes_are_still_told_apart() -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.squeeze().softmax(0)  # over the batch, if there is one

    result = check("rows", Mixed(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# over the batch, if there is one")


def test_an_error_that_all_elements_share_is_small_by_chance_in_one_pass() -> None:
    class Shared(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angle = x[:, :1] * (1 + (len(x) - 1) * 2**-23)  # one unit in the last place
            return (angle * 1e4).sin().expand(-1, 2000) * 1.5

    result = check("batch-size", Shared(), torch.full((1, 2), 0.5 + 8 / 97))
    assert result.status is CheckStatus.PASSED
