"""A zoo file's tolerance judges operations that do not repeat themselves, and no others."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from pytest_torchlens.records import Status
from pytest_torchlens.validate import tolerance
from pytest_torchlens.validate import validate

COUNT = itertools.count(1)


@torch.library.custom_op("lens_tests::shaky", mutates_args=())
def shaky(x: torch.Tensor) -> torch.Tensor:
    return x + 1e-3 * (next(COUNT) % 7)


class Shaky(nn.Module):
    def forward(self, x):
        return shaky(x) * 2


@pytest.mark.parametrize(
    ("bounds", "status"),
    [(None, Status.FAILED), ((0.0, 0.1), Status.PASSED_WITH_TOLERANCE), ((0.0, 1e-5), Status.FAILED)],
)
def test_bounds_decide(bounds, status: Status):
    with tolerance(bounds):
        assert validate(Shaky(), (torch.ones(3),), parts=["replay"]).verdict.status is status
    assert validate(Shaky(), (torch.ones(3),), parts=["replay"]).verdict.status is Status.FAILED
