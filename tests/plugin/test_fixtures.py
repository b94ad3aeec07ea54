from __future__ import annotations

import pytest


def test_lens_trace_records_in_any_test(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import torch

        def test_it(lens_trace):
            history = lens_trace(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()), torch.ones(1, 4))
            assert history["linear_1_1"].tensor_shape == (1, 2)
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_lens_validate_is_true_where_the_graph_holds(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import torch

        def test_it(lens_validate):
            assert lens_validate(torch.nn.Linear(4, 2), torch.ones(1, 4))
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


@pytest.mark.parametrize("name", ["lens_trace", "lens_validate"])
def test_each_says_what_it_gives(pytester: pytest.Pytester, name: str):
    lines = pytester.runpytest_inprocess("--fixtures").outlines
    place = next(number for number, line in enumerate(lines) if line.startswith(f"{name} --"))
    assert "no docstring" not in lines[place + 1]
    assert "forward pass of a model" in lines[place + 1]
