from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

IMAGE = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
ROW = torch.rand(1, 6, generator=torch.Generator().manual_seed(0))


class Viewing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return y.view(len(x), 2, -1)  # takes dense memory for granted


class Striding(nn.Module):
    """Reads memory as if it were dense, which no function can know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y.as_strided((len(x), 3), (x[0].numel(), 1))  # reads memory


class Reshaping(Viewing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).reshape(len(x), 2, -1)


class Dense(Striding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).contiguous().as_strided((len(x), 3), (x[0].numel(), 1))


class Inplace(nn.Module):
    """Writes to its input, which an expanded tensor refuses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= x.mean(1, keepdim=True)  # writes
        return x.square()


def test_a_view_that_channels_last_breaks_is_found() -> None:
    result = check("layout", Viewing(), IMAGE)
    assert result.status is CheckStatus.FAILED
    assert result.operation == "view_1_2"
    assert line_of(result).endswith("# takes dense memory for granted")
    assert result.failure is not None
    assert "with inputs and weights in channels_last" in result.failure.message


def test_memory_that_is_read_as_if_it_were_dense_is_found() -> None:
    result = check("layout", Striding(), IMAGE)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# reads memory")


def test_a_write_to_an_expanded_input_is_found() -> None:
    result = check("layout", Inplace(), ROW)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# writes")
    assert result.failure is not None
    assert "with inputs that are expanded" in result.failure.message


@pytest.mark.parametrize("model", [Reshaping(), Dense()])
def test_reshape_and_contiguous_pass(model: nn.Module) -> None:
    result = check("layout", model, IMAGE)
    assert (result.status, result.compared) == (CheckStatus.PASSED, 2)


def test_a_vector_has_no_other_layout() -> None:
    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    assert check("layout", Doubling(), torch.rand(())).status is CheckStatus.NOT_APPLICABLE
