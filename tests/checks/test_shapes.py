from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.checks import shapes
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import TwoLayers
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(1, 8, generator=torch.Generator().manual_seed(0))
IMAGE = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(0, 20, (2, 8), generator=torch.Generator().manual_seed(0))
KEPT = ("whether a value is kept from a call before this check: look at the model before its first call",)


class Scaled(nn.Module):
    """Scales by the size of its first input, which it keeps."""

    scale = 0.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale = self.scale or x.size(-1) ** -0.5
        y = self.conv(x)
        return (y * self.scale).square().mean((2, 3))  # by what was kept


class ScaledAnew(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.conv(x) * x.size(-1) ** -0.5).square().mean((2, 3))


class Positioned(nn.Module):
    """Adds a table of positions of one size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 4, 4, 4)
        self.positions = nn.Parameter(torch.randn(1, 4, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x)
        y = y + self.positions  # of one size
        return y.relu().mean((2, 3))


class Resized(Positioned):
    """Keeps a table for each size."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[torch.Size, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x)
        size = y.shape[2:]
        if size not in self.tables:
            self.tables[size] = nn.functional.interpolate(self.positions, size=size, mode="bilinear")
        return (y + self.tables[size]).relu().mean((2, 3))


class AtMostTwo(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(y[:2])  # at most two


class Swapped(TwoLayers):
    """Reshapes as if the batch were the last dimension: right for one example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y.reshape(8, len(x)).T  # mixes examples
        return self.last(y)  # type: ignore[no-any-return]


class Read(nn.Module):
    """Reads tokens, to a limit."""

    limit = 100

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        tokens = self.embedding(ids)
        tokens = tokens[:, : self.limit]  # to a limit
        return tokens.cumsum(1).mean(1)


class ReadInPart(Read):
    limit = 8


def test_a_factor_of_the_first_size_is_found() -> None:
    model = Scaled()
    result = check("shapes", model, IMAGE)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# by what was kept")
    assert result.operation == "mul_1_2"
    assert result.failure is not None
    assert "on images of 48×48, after the first size" in result.failure.message
    assert not model.scale


@pytest.mark.parametrize(("model", "words"), [(AtMostTwo(), "# at most two"), (Swapped(), "# mixes examples")])
def test_a_size_that_three_examples_do_not_have_is_found(model: nn.Module, words: str) -> None:
    result = check("shapes", model, X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith(words)


def test_tokens_that_are_not_read_are_found() -> None:
    result = check("shapes", ReadInPart(), IDS)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# to a limit")
    assert result.operation.startswith("getitem")


@pytest.mark.parametrize(("side", "limit"), [(6, 6), (16, 16), (31, 31)])
def test_pixels_that_are_not_read_are_found_in_small_images_too(side: int, limit: int) -> None:
    class Cropped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x[..., :limit, :limit]  # cropped
            return y.mean((2, 3))

    result = check("shapes", Cropped(), torch.rand(1, 3, side, side))
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# cropped")


@pytest.mark.parametrize("side", [6, 16, 48])
def test_a_model_that_never_reads_the_end_of_an_image_passes(side: int) -> None:
    class Corner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[..., : side // 2, : side // 2].mean((2, 3))

    assert check("shapes", Corner(), torch.rand(1, 3, side, side)).status is CheckStatus.PASSED


def test_what_a_model_refuses_fails_only_if_it_claims_to_take_it() -> None:
    result = check("shapes", Positioned(), IMAGE)
    assert result.status is CheckStatus.PASSED
    assert any("on images of 48×48: " in reason for reason in result.unseen)
    result = check("shapes", Positioned(), IMAGE, sizes="image")
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# of one size")
    assert result.operation == "add_1_2"


@pytest.mark.parametrize(("model", "x"), [(ScaledAnew(), IMAGE), (Resized(), IMAGE), (Read(), IDS)])
def test_models_of_any_size_pass(model: nn.Module, x: torch.Tensor) -> None:
    result = check("shapes", model, x, sizes="batch,image" if x.dim() == 4 else "batch,sequence")
    assert result.status is CheckStatus.PASSED
    assert result.notes[0] == "in a batch of 3"
    assert len(result.notes) == 3
    assert result.unseen == KEPT


def test_nothing_is_found_if_nothing_stays_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_kept", lambda *_: iter(()))
    assert check("shapes", Scaled(), IMAGE).status is CheckStatus.PASSED


def test_a_number_has_no_other_size() -> None:
    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    assert check("shapes", Doubling(), torch.tensor(1.5)).status is CheckStatus.NOT_APPLICABLE


def test_the_size_of_an_image_among_the_inputs_is_that_of_the_image() -> None:
    class Cropped(nn.Module):
        def forward(self, image: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
            height, width = sizes[0].tolist()
            return image[..., :height, :width].mean((2, 3))

    result = check("shapes", Cropped(), torch.rand(1, 3, 32, 32), torch.tensor([[32, 32]]), sizes="image")
    assert result.status is CheckStatus.PASSED


@pytest.mark.parametrize("columns", [True, False])
def test_coordinates_beside_an_image_go_on_counting(columns: bool) -> None:
    class Placed(nn.Module):
        def forward(self, image: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            assert places.shape[-2:] == image.shape[-2:]
            return (image * places.diff(dim=-1 if columns else -2).eq(1).all()).mean((2, 3))

    down, right = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    result = check("shapes", Placed(), IMAGE, (right if columns else down)[None], sizes="image")
    assert (result.status, result.unseen) == (CheckStatus.PASSED, KEPT)


class Resizing(nn.Module):
    """Resizes to the size of its first image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.size: torch.Size | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        self.size = self.size or y.shape[-2:]
        y = nn.functional.interpolate(y, self.size)  # resizes
        return y.relu().mean((2, 3))


def test_a_size_that_stays_is_found_where_the_shape_is_another_one() -> None:
    result = check("shapes", Resizing().eval(), IMAGE)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# resizes")
