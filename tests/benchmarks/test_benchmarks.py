"""Each mode of the benchmarks does what it says, on a tiny model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.grouping import WORKLOADS
from benchmarks.grouping import seconds
from benchmarks.modes import OURS
from benchmarks.modes import WITHOUT
from benchmarks.modes import UnusedError
from benchmarks.modes import left_out
from benchmarks.storage import largest_operation
from benchmarks.storage import peak_of


class Tiny(nn.Module):
    """A module, and an operation that draws random numbers: what all modes leave out is there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(self.inner(x), 0.1, train=True) + 1


@pytest.mark.parametrize("mode", [*OURS, *WITHOUT])
def test_each_mode_runs(mode: str) -> None:
    with torch.no_grad():
        assert (OURS | WITHOUT)[mode](Tiny(), torch.rand(2, 4)) is not None


def test_what_nothing_calls_cannot_be_left_out() -> None:
    with pytest.raises(UnusedError, match=r"Tiny\.forward"), left_out(Tiny, "forward", lambda *_: None):
        pass


def test_a_name_that_moved_is_an_error() -> None:
    with pytest.raises(AttributeError), left_out(Tiny, "moved", lambda *_: None):
        pass


@pytest.mark.parametrize("graph", WORKLOADS)
def test_grouping_is_timed(graph: str) -> None:
    assert min(seconds(WORKLOADS[graph](20))) >= 0


def test_storage_is_counted() -> None:
    x = torch.rand(2, 4)
    with torch.no_grad():
        assert peak_of(OURS["validated"], Tiny(), x) > peak_of(OURS["plain"], Tiny(), x) > 0
    assert largest_operation(Tiny(), x) > 0
