"""Rows that are coupled otherwise than by an operation on them: by a decision of Python, their places, a list, ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SEQUENCE = torch.rand(3, 5, 8, generator=torch.Generator().manual_seed(0))


class Converging(nn.Module):
    """Runs a loop until all rows have converged."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, after = torch.zeros_like(x), self.layer(x)
        while (after - before).abs().max() > 1e-2:  # all rows
            before, after = after, after * 0.6 + x * 0.1
        return after


class Longest(nn.Module):
    """Takes the mean over as many positions as the longest example has."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest = int(lengths.max())  # all rows
        return x[:, :longest].mean(1)


@pytest.mark.parametrize(
    ("model", "args"),
    [(Converging(), [SEQUENCE[0, :3] * 0.1]), (Longest(), [SEQUENCE, torch.tensor([5, 4, 3])])],
)
def test_what_python_decides_by_all_rows_is_found_where_it_is_made(model: nn.Module, args: list[torch.Tensor]) -> None:
    methods = dict(vars(torch.Tensor))
    result = check("rows", model, *args)
    assert vars(torch.Tensor) == methods
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# all rows")
    assert result.failure is not None
    assert result.failure.cause.startswith("Python reads")


def test_a_decision_by_all_rows_that_no_row_shows_is_said() -> None:
    class Same(Converging):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if x.abs().max() > 0 else x

    result = check("rows", Same(), SEQUENCE[0, :3])
    assert result.status is CheckStatus.PASSED
    assert len(result.unseen) == 1
    assert result.unseen[0].startswith("whether rows share what Python decides by max_")


class Exchanging(nn.Module):
    """Rows change places, or are ranked, in one line."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if self.way == "roll":
            rolled = y[:, 6:].roll(1, 0)  # roll
            y = torch.cat([y[:, :6], rolled], 1)
        elif self.way == "rank":
            ranks = y.argsort(0)  # rank
            y = y + ranks / 10
        elif self.way == "flip":
            y = y.flip(0)  # flip
        else:
            order = y.sum(1).argsort()
            y = y[order]
            y = y + y.mean(0)  # sorted
            y = y[order.argsort()]
        return self.last(y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["roll", "rank", "flip", "sorted"])
def test_rows_that_change_places_are_found_where_they_do(way: str) -> None:
    result = check("rows", Exchanging(way), SEQUENCE[0, :3])
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith(f"# {way}")


class Detecting(nn.Module):
    """Returns a list with a dict for each image."""

    def __init__(self, way: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, x: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        y = self.conv(x).flatten(2)
        if self.way == "largest":
            y = y / y.abs().amax()  # largest
        if self.way == "number":
            y = y * (1.01 if len(x) > 1 else 1)  # number
        return [{"boxes": image[1:, image[0] > 0], "scores": image[0].sigmoid()} for image in y]


@pytest.mark.parametrize(("name", "way"), [("rows", "largest"), ("batch-size", "largest"), ("batch-size", "number")])
def test_items_of_lists_are_the_rows_of_detectors(name: str, way: str) -> None:
    result = check(name, Detecting(way), torch.cat([X, X * 2]))
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith(f"# {way}")


def test_detectors_that_look_at_each_image_alone_pass() -> None:
    for name in ("rows", "batch-size"):
        result = check(name, Detecting(), torch.cat([X, X * 2]))
        assert (result.status, result.compared) == (CheckStatus.PASSED, 2)


class Logits(nn.Module):
    """Gives the constant of a finite mask to some logits."""

    def __init__(self, fill: float, *, leaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.fill, self.leaks = nn.Linear(8, 9), fill, leaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.leaks:
            y = y + y.mean(0)  # leaks
        return y.masked_fill(torch.arange(9) % 3 == 0, self.fill)


@pytest.mark.parametrize("name", ["rows", "batch-size"])
@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min, -1e4])
def test_a_finite_mask_hides_no_difference_beside_it(name: str, fill: float) -> None:
    assert check(name, Logits(fill), SEQUENCE[0, :3]).status is CheckStatus.PASSED
    result = check(name, Logits(fill, leaks=True), SEQUENCE[0, :3])
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# leaks")


class OfTheBatch(nn.Module):
    """Reads a number that all ids of a batch have in common."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 8)
        self.function = function

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        number = self.function(ids)  # of the batch
        kept = (ids != number).unsqueeze(-1)
        return (self.embed(ids) * kept).sum(1) + number  # type: ignore[no-any-return]


IDS = torch.tensor([[20, 40, 46, 8, 29, 21, 49]])


@pytest.mark.parametrize("function", [torch.max, torch.min, torch.sum])
@pytest.mark.parametrize("ids", [IDS, torch.cat([IDS, IDS.flip(1)])])
def test_a_number_that_ids_in_another_order_do_not_change_is_found(
    function: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor
) -> None:
    result = check("rows", OfTheBatch(function), ids)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# of the batch")


def test_a_number_of_the_ids_of_each_row_passes() -> None:
    assert check("rows", OfTheBatch(lambda ids: ids.amax(1, keepdim=True)), IDS).status is CheckStatus.PASSED
