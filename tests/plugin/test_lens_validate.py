from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")


def test_a_graph_that_holds_passes(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["lens: 1 model, torch *, validate all parts", "*mlp * passed *"])


def test_a_graph_that_does_not_hold_fails_the_item(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:drifts", "--lens-validate")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*tiny:drifts: validation failed in observer*", "observer: * failed", "*FAILED *::drifts - *validation*"]
    )
    assert "pytest_torchlens" not in result.stdout.str().partition("FAILURES")[2].partition("= lens =")[0]


def test_without_it_nothing_is_proved(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:drifts")
    result.assert_outcomes(passed=1)


def test_parts_are_chosen(pytester: pytest.Pytester):
    options = ["--lens-zoo=tiny:drifts", "--lens-validate"]
    result = pytester.runpytest_inprocess(*options, "--lens-parts=replay,perturbation")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["lens: *validate replay, perturbation"])
    result = pytester.runpytest_inprocess(*options, "--lens-parts=observer", "--lens-parts=replay")
    result.assert_outcomes(failed=1)


def test_parts_in_the_ini_file(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\nlens_parts = replay")
    options = ["--lens-zoo=tiny:drifts", "--lens-validate"]
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1)
    pytester.runpytest_inprocess(*options, "--lens-parts=observer").assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lens-validate", "--lens-parts=replai"], "*--lens-parts: *'replai'*'replay'*"),
        (["--lens-report-activations"], "*--lens-report-activations needs --lens-report=DIR, *"),
        (["--lens-parts=replay"], "*--lens-parts needs --lens-validate, whose parts it selects"),
    ],
)
def test_wrong_options_are_usage_errors(pytester: pytest.Pytester, arguments: list[str], message: str):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_with_no_model_named_the_header_says_so(pytester: pytest.Pytester):
    pytester.makepyfile("def test_mine(): pass")
    result = pytester.runpytest_inprocess("--lens-validate", "--lens-autotrace=off")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["lens: no model is named*"])
