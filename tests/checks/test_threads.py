from __future__ import annotations

import torch
from torch import nn

from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(4, 1024, generator=torch.Generator().manual_seed(0)) - 0.3


class Racing(nn.Module):
    """Leaves out what a thread has not done yet."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[:, : 1024 - 8 * torch.get_num_threads()].sum(1)  # a race


class Coarse(nn.Module):
    """Rounds more with more threads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32 if torch.get_num_threads() == 1 else torch.bfloat16
        y = x.to(dtype)  # rounds
        return y.float().cos()


class InParts(nn.Module):
    """Adds up in as many parts as there are threads, as kernels do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [part.cumsum(1)[:, -1] for part in x.chunk(4 * torch.get_num_threads(), 1)]
        return torch.stack(parts).sum(0)


def run(model: nn.Module) -> tuple[CheckStatus, str]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = check("threads", model, X)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    return result.status, line_of(result) if result.failure else ""


def test_values_that_depend_on_the_threads_are_found() -> None:
    status, line = run(Racing())
    assert (status, line[-6:]) == (CheckStatus.FAILED, "a race")


def test_rounding_that_depends_on_the_threads_is_found() -> None:
    status, line = run(Coarse())
    assert (status, line[-6:]) == (CheckStatus.FAILED, "rounds")


def test_another_order_of_summation_passes() -> None:
    assert run(InParts())[0] is CheckStatus.PASSED
    assert run(nn.Linear(1024, 64))[0] is CheckStatus.PASSED
