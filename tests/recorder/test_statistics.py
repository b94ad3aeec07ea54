from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchlens.recorder.statistics import TensorStatistics


def stats(tensor: torch.Tensor):
    return TensorStatistics(tensor).statistics()


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50),
    st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_they_are_those_of_the_finite_values(values: list[float], dtype: torch.dtype):
    tensor = torch.tensor(values).to(dtype)
    finite = tensor[tensor.isfinite()].double()
    found = stats(tensor)
    assert found.count == len(values)
    assert found.nans == len(values) - len(finite)
    assert found.zeros == pytest.approx(float((tensor == 0).double().mean()), abs=1e-6)
    if not len(finite):
        return
    scale = float(finite.abs().max()) or 1.0
    assert found.mean == pytest.approx(float(finite.mean()), rel=1e-4, abs=1e-4 * scale)
    assert found.norm == pytest.approx(float(finite.norm()), rel=1e-4, abs=1e-30)
    assert found.min == float(finite.min())
    assert found.max == float(finite.max())
    if len(finite) > 1:
        assert found.std == pytest.approx(float(finite.std()), rel=1e-2, abs=1e-4 * scale)


def test_a_small_spread_around_a_large_mean_is_found():
    tensor = 1e4 + torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    assert stats(tensor).std == pytest.approx(float(tensor.double().std()), rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_counted_and_left_out(bad: float):
    tensor = torch.tensor([1.0, bad, 3.0, bad])
    found = stats(tensor)
    assert (found.nans, found.mean, found.min, found.max) == (2, 2.0, 1.0, 3.0)
    assert TensorStatistics(tensor, norm_only=True).statistics().nans == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_where_nothing_is_finite_nothing_is_made_up(bad: float):
    found = stats(torch.full((4, 8), bad))
    assert found.nans == 32
    assert all(math.isnan(size) for size in (found.mean, found.std, found.norm, found.min, found.max))


def test_large_numbers_do_not_overflow():
    found = stats(torch.full((1000,), 3e38))
    assert found.nans == 0
    assert found.norm == pytest.approx(3e38 * math.sqrt(1000))
    assert stats(torch.full((100_000,), 60_000.0, dtype=torch.float16)).mean == pytest.approx(60_000, rel=1e-3)


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(3).to_sparse(), torch.eye(6)[::2, 1::2], torch.eye(3, dtype=torch.complex64), torch.tensor(2.0)],
    ids=["sparse", "strided", "complex", "scalar"],
)
def test_tensors_of_other_kinds(tensor: torch.Tensor):
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    assert stats(tensor).norm == pytest.approx(float(dense.abs().norm()))
