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


def test_lens_draw_draws_a_model_or_a_history(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import pytest
        import pytest_torchlens as tl
        import torch

        MODEL, X = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()), torch.ones(1, 4)

        def test_model(lens_draw, tmp_path):
            path = lens_draw(MODEL, X, legend=True)
            assert path == tmp_path / "model_graph.svg"
            assert "linear_1_1" in path.read_text()

        def test_history(lens_draw, tmp_path):
            history = tl.log_forward_pass(MODEL, X)
            assert "relu_1_2" in lens_draw(history, path=tmp_path / "net.dot", focus="1").read_text()

        def test_mistake(lens_draw):
            with pytest.raises(tl.OptionError, match="unknown option 'focsu'; did you mean 'focus'"):
                lens_draw(MODEL, X, focsu="0")
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=3)


@pytest.mark.parametrize("name", ["lens_report", "lens_draw", "lens_trace", "lens_validate", "lens_edit"])
def test_each_says_what_it_gives(pytester: pytest.Pytester, name: str):
    lines = pytester.runpytest_inprocess("--fixtures").outlines
    place = next(number for number, line in enumerate(lines) if line.startswith(f"{name} --"))
    assert "no docstring" not in lines[place + 1]
    assert "forward pass" in lines[place + 1]
