"""In what two environments differ, and what that lets numbers differ by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_torchlens.baseline.environments import axes
from pytest_torchlens.records import Environment

BEFORE = Environment(torch="2.13.0+cpu", python="3.11.7", packages={"MKL": "2024.2", "CUDA": "12.8"}, num_threads=2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ()),
        ({"torch": "2.14.1+cu130"}, ("torch 2.13.0 → 2.14.1",)),
        ({"num_threads": 1, "torch": "2.14.1"}, ("threads 2 → 1", "torch 2.13.0 → 2.14.1")),
        ({"packages": {"MKL": "2025.1", "CUDA": "13.0"}}, ("MKL 2024.2 → 2025.1",)),
        ({"packages": {"MKL": "2024.2", "timm": "1.0.31"}}, ("timm none → 1.0.31",)),
    ],
)
def test_axes(changes, expected):
    assert axes(BEFORE, replace(BEFORE, **changes)) == expected


def test_cuda_counts_where_it_computed():
    before = replace(BEFORE, device="cuda", settings={"tf32": "False"})
    after = replace(before, packages={"MKL": "2025.1", "CUDA": "13.0"}, settings={"tf32": "True"})
    assert axes(before, after) == ("tf32 False → True", "CUDA 12.8 → 13.0")


def test_a_fact_that_one_side_does_not_tell_has_not_changed():
    """A baseline from before a fact was looked for is no other machine."""
    after = replace(BEFORE, packages={**BEFORE.packages, "BLAS": "mkl"}, settings={"tf32": "True", "host": "ci"})
    assert axes(BEFORE, after) == ()
    assert axes(after, BEFORE) == ()
