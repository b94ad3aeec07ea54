"""`--lens-validate` in a repository that never heard of it."""

from __future__ import annotations

import pytest

import pytest_torchlens.plugin.autotrace
import pytest_torchlens.run.module_calls  # noqa: F401 - loaded once for all inner pytests

MODELS = """
import pytest
import torch
from torch import nn

X = torch.ones(2, 4)

class Hidden(nn.Module):
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return x.cos()
"""
FAILED = "*Hidden: validation failed (aten::cos: *"


@pytest.fixture
def write(pytester: pytest.Pytester):
    """Return what writes a test file that has models at hand."""
    return lambda text: pytester.makepyfile(test_them=MODELS + text)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids=str)
def test_a_call_like_one_that_failed_fails_too(pytester: pytest.Pytester, write, names):
    write("".join(f"def test_{name}():\n    Hidden()(X)\n    Hidden()(X)\n\n" for name in names))
    result = pytester.runpytest_inprocess("--lens-validate")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["4 outermost module calls in 2 tests: 2 failed, 2 like one before"])


def test_a_call_like_one_that_is_unproven_is_unproven_too(pytester: pytest.Pytester, write):
    write("".join(f"def test_{name}():\n    nn.Identity()(X)\n\n" for name in "ab"))
    result = pytester.runpytest_inprocess("--lens-validate", "--lens-fail-on=unproven")
    result.assert_outcomes(failed=2)


def test_each_model_is_validated_once_and_tests_pass(pytester: pytest.Pytester, write):
    write(
        """
@pytest.fixture
def y():
    return nn.Linear(4, 3)(X)

def test_one(y):
    assert y.shape == (2, 3)

def test_two():
    assert nn.Linear(4, 3)(X).requires_grad
    assert nn.Linear(4, 2)(X).requires_grad

def test_three():
    pass
"""
    )
    result = pytester.runpytest_inprocess("--lens-validate")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "lens: each model that tests call is validated once; a failed verdict fails the test",
            "*= lens: models called in tests =*",
            "3 outermost module calls in 2 tests: 2 proven, 1 like one before",
            "it took * s of the * s that the tests took",
        ]
    )


def test_a_failed_verdict_fails_a_test_that_passed(pytester: pytest.Pytester, write):
    write("def test_it():\n    Hidden()(X)\n")
    result = pytester.runpytest_inprocess("--lens-validate", "-rf")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*_ test_it _*",
            "*lens*" + FAILED,
            "*- lens -*",
            "Hidden: validation failed",
            "completeness: 1 of 1 dispatcher operations failed",
            "*at: *test_them.py:10, in forward",
            "FAILED test_them.py::test_it: Hidden: failed*",
            "FAILED test_them.py::test_it - lens: Hidden: validation failed*",
        ]
    )


def test_in_mode_warn_it_is_a_warning(pytester: pytest.Pytester, write):
    write("def test_it():\n    Hidden()(X)\n")
    for arguments in (["--lens-autotrace-mode=warn", "-W", "error"], ["-o", "lens_autotrace_mode=warn"]):
        result = pytester.runpytest_inprocess("--lens-validate", *arguments)
        result.assert_outcomes(passed=1, warnings=1)
        result.stdout.fnmatch_lines(["test_them.py::test_it", "*test_them.py:11: LensWarning" + FAILED])


OUTCOMES = """
@pytest.mark.xfail
def test_expected():
    Hidden()(X)
    raise ValueError

@pytest.mark.xfail
def test_not_expected():
    Hidden()(X[:1])

def test_skipped():
    Hidden()(X.repeat(2, 1))
    pytest.skip("too dull")

def test_failed():
    Hidden()(X.repeat(3, 1))
    raise ValueError

@pytest.fixture
def broken():
    Hidden()(X.repeat(4, 1))
    raise ValueError

def test_error(broken):
    pass
"""


def test_other_outcomes_are_kept(pytester: pytest.Pytester, write):
    write(OUTCOMES)
    plain = pytester.runpytest_inprocess().parseoutcomes()
    result = pytester.runpytest_inprocess("--lens-validate")
    assert result.parseoutcomes() == plain
    assert plain == {"xfailed": 1, "xpassed": 1, "skipped": 1, "failed": 1, "errors": 1}
    result.stdout.fnmatch_lines(["5 outermost module calls in 5 tests: 5 failed"])


def test_off_and_all(pytester: pytest.Pytester, write):
    write("def test_it():\n    for _ in range(3): nn.ReLU()(X)\n")
    off = pytester.runpytest_inprocess("--lens-validate", "--lens-autotrace=off")
    off.stdout.no_fnmatch_line("*models called*")
    off.stdout.fnmatch_lines(["lens: no model is named*"])
    every = pytester.runpytest_inprocess("--lens-validate", "--lens-autotrace=all")
    every.stdout.fnmatch_lines(["lens: all model calls *", "3 outermost module calls in 1 test: 3 proven"])
    pytester.makeini("[pytest]\nlens_autotrace = all")
    pytester.runpytest_inprocess("--lens-validate").stdout.fnmatch_lines(["*: 3 proven"])
    once = pytester.runpytest_inprocess("--lens-validate", "--lens-autotrace=once")
    once.stdout.fnmatch_lines(["*: 1 proven, 2 like one before"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--lens-autotrace=onec", "*--lens-autotrace: expected 'once', *, got 'onec' (did you mean 'once'?)"),
        ("--lens-autotrace-mode=warning", "*--lens-autotrace-mode: expected *, got 'warning' (did you mean 'warn'?)"),
        ("--lens-autotrace-seconds=long", "*--lens-autotrace-seconds: expected a number of at least 0, got 'long'"),
        ("--lens-autotrace-memory=-1", "*--lens-autotrace-memory: expected a number of at least 0, got -1*"),
    ],
)
def test_wrong_values_are_usage_errors(pytester: pytest.Pytester, argument: str, message: str):
    result = pytester.runpytest_inprocess("--lens-validate", argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_markers_have_options_for_one_test(pytester: pytest.Pytester, write):
    write(
        """
@pytest.mark.lens(autotrace="off")
def test_off():
    Hidden()(X)

@pytest.mark.lens(mode="warn")
def test_warns():
    Hidden()(X)

@pytest.mark.lens(parts=["replay", "invariants"])
class TestParts:
    def test_it(self):
        Hidden()(X[:1])

    @pytest.mark.lens(parts="completeness")
    def test_nearest_wins(self):
        Hidden()(X[:, :1])

@pytest.mark.lens(seconds=0)
def test_no_time():
    Hidden()(X)

@pytest.mark.lens(autotrace="all", memory=0)
def test_no_memory():
    for _ in range(2):
        nn.Linear(4, 4)(X)
"""
    )
    result = pytester.runpytest_inprocess("--lens-validate", "--strict-markers", "-v")
    result.assert_outcomes(passed=5, failed=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*test_nearest_wins FAILED*",
            "6 outermost module calls in 5 tests: 2 failed, 3 unproven, 1 left out",
            "unproven: 2 calls: replay and perturbation: the replay would hold about 32 B, and 0 B are allowed (*",
            "left out: 1 call: the time for this test was up (first in test_them.py::test_no_time)",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("lens('off')", "*test_them.py::test_it: marker lens: expected keywords such as autotrace='off', got 'off'"),
        ("lens(autotrac='off')", "*::test_it: marker lens: unknown option 'autotrac'; did you mean 'autotrace'?"),
        ("lens(mode='fial')", "*mode: expected 'fail', 'warn', got 'fial' (did you mean 'fail'?)"),
        ("lens(parts=[1])", "*parts: expected names of parts *, got *1*"),
        ("lens(parts='replya')", "*parts: expected *, got 'replya' (did you mean 'replay'?)"),
        ("lens(seconds='x')", "*seconds: expected a number of at least 0, got 'x'"),
    ],
)
def test_wrong_markers_are_usage_errors(pytester: pytest.Pytester, write, marker: str, message: str):
    write(f"@pytest.mark.{marker}\ndef test_it():\n    pass\n")
    result = pytester.runpytest_inprocess("--lens-validate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_errors_of_ours_are_said_and_break_nothing(pytester: pytest.Pytester, write, monkeypatch: pytest.MonkeyPatch):
    def breaks(*_):
        raise RuntimeError("an insect")

    monkeypatch.setattr("pytest_torchlens.capture.tensor_table.TensorTable.add_output", breaks)
    write("def test_it():\n    assert nn.Sequential(nn.Linear(4, 3), nn.ReLU())(X).shape == (2, 3)\n")
    result = pytester.runpytest_inprocess("--lens-validate", "-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*- lens -*",
            "Sequential was called, but could not be recorded, by an error of pytest-torchlens's:",
            "*in breaks",
            "RuntimeError: an insect",
            "*: 1 left out",
            "left out: 1 call: an error of pytest-torchlens (first in test_them.py::test_it)",
            "please report this error of pytest-torchlens:",
            "  test_them.py::test_it: Sequential: RuntimeError: an insect",
        ]
    )


def test_what_is_left_open_is_said(pytester: pytest.Pytester, write):
    write(
        """
def test_constant():
    class Adds(nn.Module):
        def forward(self, x):
            return x + X
    Adds()(X * 2)

def test_two_constants():
    ones, twos = torch.ones(4), torch.ones(4) * 2
    class AddsBoth(nn.Module):
        def forward(self, x):
            return x + ones + twos
    AddsBoth()(X)
"""
    )
    result = pytester.runpytest_inprocess("--lens-validate", "-rP")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "Adds: not checked: whether each constant of the graph existed before the call",
            "not checked: 2 calls: whether each constant of the graph existed before the call (first in *)",
        ]
    )


def test_lf_comes_back_to_it(pytester: pytest.Pytester, write):
    write("def test_a():\n    pass\n\ndef test_it():\n    Hidden()(X)\n")
    pytester.runpytest_inprocess("--lens-validate").assert_outcomes(passed=1, failed=1)
    pytester.runpytest_inprocess("--lens-validate", "--lf").assert_outcomes(failed=1)


def test_quiet_says_in_one_line_how_many_calls_there_were(pytester: pytest.Pytester, write):
    write("def test_it():\n    nn.ReLU()(X)\n")
    result = pytester.runpytest_inprocess("--lens-validate", "-q")
    assert [line for line in result.outlines if "lens" in line] == ["lens: 1 outermost module call in 1 test: 1 proven"]
    write("def test_it():\n    pass\n")
    pytester.runpytest_inprocess("--lens-validate", "-q").stdout.no_fnmatch_line("*lens*")
    write("def test_it():\n    Hidden()(X)\n")
    pytester.runpytest_inprocess("--lens-validate", "-q").stdout.fnmatch_lines(["FAILED *Hidden: failed*"])


def test_collecting_alone_runs_nothing(pytester: pytest.Pytester, write):
    write("def test_it():\n    Hidden()(X)\n")
    result = pytester.runpytest_inprocess("--lens-validate", "--co")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*models called*")


def test_tests_that_call_no_model(pytester: pytest.Pytester):
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess("--lens-validate")
    result.stdout.fnmatch_lines(["no test called a model in its own thread and process"])


def test_calls_in_another_thread_are_not_heard_of_and_nobody_says_that_there_was_none(pytester: pytest.Pytester, write):
    write("""
from concurrent.futures import ThreadPoolExecutor

def test_it():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(Hidden(), X).result()
""")
    result = pytester.runpytest_inprocess("--lens-validate")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["no test called a model in its own thread and process"])


def test_a_run_of_zoos_alone_says_nothing_of_tests(pytester: pytest.Pytester, tiny_zoo):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("lens: each model that tests call*")
    result.stdout.no_fnmatch_line("*models called in tests*")


def test_results_of_workers_are_gathered_once(pytester: pytest.Pytester, write):
    pytest.importorskip("xdist")
    write(
        "\n".join(f"def test_{i}():\n    nn.Linear(4, {i})(X)\n" for i in range(1, 5)) + "def test_5(): Hidden()(X)\n"
    )
    result = pytester.runpytest_subprocess("--lens-validate", "-n2")
    result.assert_outcomes(passed=4, failed=1)
    assert result.stdout.str().count("models called in tests") == 1
    result.stdout.fnmatch_lines(["5 outermost module calls in 5 tests: 1 failed, 4 proven"])


@pytest.mark.parametrize("plugin", ["cacheprovider", "xdist", "capture", "terminal", "warnings", "skipping"])
def test_without_a_plugin_of_pytest(pytester: pytest.Pytester, write, plugin: str):
    write("def test_it():\n    Hidden()(X)\n")
    result = pytester.runpytest_inprocess("--lens-validate", f"-pno:{plugin}", "-x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
