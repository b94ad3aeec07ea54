from __future__ import annotations

import pytest

import pytest_torchlens.functions  # noqa: F401 - loaded once for all inner pytests


def test_tensors_and_histories_are_explained(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
import torch
from torch import nn

def test_tensors():
    assert torch.tensor([1.0]) == torch.tensor([2.0])

def test_histories(lens_trace):
    x = torch.ones(1, 4)
    assert lens_trace(nn.Sequential(nn.Linear(4, 2)), x) == lens_trace(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), x)

def test_others():
    assert 1 == 2
"""
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "E*float32[[]1] == float32[[]1]",
            "E*Greatest absolute difference: 1.0*",
            "E*history of Sequential == history of Sequential: two passes are two histories",
            "E*relu_1_2 came in",
            "E*assert 1 == 2",
        ]
    )
