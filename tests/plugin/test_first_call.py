"""Until a test calls a model, `--lens-validate` imports none of the code that validates it; then nothing is missed."""

from __future__ import annotations

from textwrap import indent

import pytest
from torch import nn

import pytest_torchlens.plugin.autotrace
import pytest_torchlens.run.module_calls  # noqa: F401 - loaded once for all inner pytests

SPY = """
import sys

def pytest_unconfigure():
    print("loaded:", *(name for name in ("capture", "history", "records", "baseline", "zoo", "plugin.autotrace")
                       if f"pytest_torchlens.{name}" in sys.modules))
"""
NO_CALLS = """
import torch

def test_makes_a_model_and_calls_none():
    model = torch.nn.Linear(2, 3)
    assert model.forward(torch.rand(1, 2)).shape == (1, 3)
"""


@pytest.mark.parametrize("tests", ["def test_empty(): pass", NO_CALLS])
def test_nothing_is_loaded_for_tests_that_call_no_model(pytester: pytest.Pytester, tests: str):
    pytester.makeconftest(SPY)
    pytester.makepyfile(tests)
    result = pytester.runpytest_subprocess("--lens-validate", "-s")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["no test called a model in its own thread and process", "loaded:"])


def test_a_usual_option_of_ours_is_still_checked_at_once(pytester: pytest.Pytester):
    pytester.makepyfile("def test_empty(): pass")
    result = pytester.runpytest_inprocess("--lens-validate", "--lens-fail-on=structur")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--lens-fail-on: *structur*"])


@pytest.mark.parametrize("phase", ["setup", "call", "teardown", "subtest", "under a wrapper", "device"])
def test_the_first_call_is_proven_wherever_it_is(pytester: pytest.Pytester, phase: str):
    call = "torch.nn.Linear(2, 3)(torch.rand(1, 2))"
    bodies = {"setup": f"{call}; yield", "teardown": f"yield; {call}"}
    pytester.makepyfile(
        f"""
import pytest, torch

@pytest.fixture
def lib():
    {bodies.get(phase, "yield")}

def test_before():
    pass

def test_first(lib, subtests, monkeypatch):
{indent(BODIES.get(phase, "pass"), "    ")}

def test_second():
    torch.nn.Linear(2, 4)(torch.rand(1, 2))
"""
    )
    former = nn.Module.__call__
    result = pytester.runpytest_inprocess("--lens-validate")
    assert nn.Module.__call__ is former
    assert result.parseoutcomes()["passed"] == 3
    result.stdout.fnmatch_lines(["2 outermost module calls in 2 tests: 2 proven"])


BODIES = {
    "call": "torch.nn.Linear(2, 3)(torch.rand(1, 2))",
    "subtest": """
with subtests.test("empty"):
    pass
with subtests.test("first"):
    torch.nn.Linear(2, 3)(torch.rand(1, 2))
""",
    "under a wrapper": """
call = torch.nn.Module.__call__
monkeypatch.setattr(torch.nn.Module, "__call__", lambda module, *args, **kwargs: call(module, *args, **kwargs))
torch.nn.Linear(2, 3)(torch.rand(1, 2))
""",
    "device": """
with torch.device("meta"):
    model = torch.nn.Linear(2, 3)
with torch.device("cpu"), torch.inference_mode():
    torch.nn.Linear(2, 3)(torch.rand(1, 2))
""",
}


def test_a_wrong_first_call_fails_its_test_alone(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
import torch

class Hidden(torch.nn.Module):
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return x.cos()

def test_before():
    pass

def test_hidden(subtests):
    with subtests.test("one"):
        Hidden()(torch.rand(2))
    with subtests.test("another"):
        pass

def test_after():
    pass
"""
    )
    result = pytester.runpytest_inprocess("--lens-validate")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*Hidden: validation failed*", "1 outermost module call in 1 test: 1 failed"])


def test_a_deadline_is_removed_before_the_first_call(pytester: pytest.Pytester):
    pytest.importorskip("hypothesis")
    pytester.makepyfile(
        """
import hypothesis, pytest, torch
from hypothesis import strategies

@hypothesis.settings(deadline=100, max_examples=1)
@hypothesis.given(strategies.just(1))
def test_it(number):
    torch.nn.Linear(2, 3)(torch.rand(1, 2))

@pytest.mark.lens(autotrace="off")
@hypothesis.settings(deadline=100, max_examples=1)
@hypothesis.given(strategies.just(1))
def test_off(number):
    torch.nn.Linear(2, 3)(torch.rand(1, 2))

def test_deadlines():
    deadlines = [test._hypothesis_internal_use_settings.deadline for test in (test_it, test_off)]
    assert deadlines[0] is None
    assert deadlines[1] is not None
"""
    )
    result = pytester.runpytest_inprocess("--lens-validate", "-p", "hypothesispytest")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["1 outermost module call in 1 test: 1 proven"])
