from __future__ import annotations

import pytest

from pytest_torchlens.plugin.failure import failure_text
from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage

pytestmark = pytest.mark.usefixtures("tiny_zoo")


def assert_only_own_frames(result: pytest.RunResult) -> None:
    text = result.stdout.str().partition("FAILURES")[2]
    assert not [word for word in ("pytest_torchlens", "_call_impl", "_pytest/", "pluggy/") if word in text]


def test_a_model_that_raises_in_forward_shows_its_own_traceback(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:raises,mlp")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*models.py:*: in forward",
            "*return self.inner(x)*",
            "*models.py:*: in inner",
            "E   RuntimeError: boom in forward",
            "*raised in stage 'forward'*",
            "*FAILED model_zoo_configs/tiny.yaml::raises - RuntimeError: boom in forward",
        ]
    )
    assert_only_own_frames(result)


def test_a_model_that_raises_in_construction(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:broken")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*in __init__", "E   ValueError: boom in construction", "*raised in stage 'build'*"])
    assert_only_own_frames(result)


def test_all_frames_are_shown_on_request(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:raises", "--full-trace", "--tb=native")
    result.stdout.fnmatch_lines(["*_call_impl*"])


@pytest.mark.parametrize("style", ["long", "short", "line", "native", "no"])
def test_every_traceback_style(pytester: pytest.Pytester, style: str):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:raises", f"--tb={style}")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    assert_only_own_frames(result)


def test_inputs_that_do_not_fit_are_the_models_failure(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.write_text(tiny_zoo.read_text().replace("[2, 4]", "[2, 5]"))
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   RuntimeError: *shapes cannot be multiplied*", "*in stage 'forward'*"])


def test_arguments_that_forward_does_not_take(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.write_text(tiny_zoo.read_text().replace("{shape: [2, 4]}", "{y: {shape: [2, 4]}}"))
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   TypeError: *unexpected keyword argument 'y'", "*in stage 'forward'*"])


def test_no_input_is_named(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.write_text('provider: "python:models.py:zoo"')
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*this model needs an 'input', in 'defaults' or in a rule"])


def test_skip_and_xfail_with_a_reason(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.write_text(
        tiny_zoo.read_text()
        + """
rules:
  - {match: linear, skip: too dull}
  - {match: raises, xfail: known to raise}
  - {match: mlp, xfail: said to raise}
"""
    )
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear,raises,mlp", "-ra")
    result.assert_outcomes(skipped=1, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["SKIPPED*too dull", "XFAIL*raises - known to raise"])
    result.stdout.fnmatch_lines(["*[[]XPASS(strict)] said to raise"])


def test_the_run_goes_on_and_x_stops_it(pytester: pytest.Pytester):
    models = "--lens-zoo=tiny:broken,linear,raises"
    pytester.runpytest_inprocess(models).assert_outcomes(passed=1, failed=2)
    pytester.runpytest_inprocess(models, "-x").assert_outcomes(failed=1)


def test_the_last_failed_is_run_again(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=tiny:linear,raises")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear,raises", "--lf")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*tiny:linear*")


def test_control_characters_of_a_message_are_escaped(pytestconfig: pytest.Config):
    error = ErrorRecord(stage=Stage.FORWARD, type="RuntimeError", message="\x1b[31mred\x07\tend")
    text = failure_text(ModelReport(zoo="z", name="m", outcome=Outcome.FAILED, error=error), pytestconfig)
    assert text.splitlines()[0] == r"z:m: RuntimeError in stage 'forward': \x1b[31mred\x07 end"
    assert text.splitlines()[1].startswith("what to do: ")
