"""Autotrace beside the plugins that test suites use most."""

from __future__ import annotations

import time

import pytest

import pytest_torchlens.plugin.autotrace
import pytest_torchlens.run.module_calls

MODELS = """
import pytest
import torch
from torch import nn

X = torch.ones(2, 4)
"""
HIDDEN = """
class Hidden(nn.Module):
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return x.cos()
"""
VALIDATE = ("--lens-validate", "-W", "error", "--strict-markers", "--strict-config")


@pytest.fixture(autouse=True)
def others(lean, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS")


@pytest.fixture
def write(pytester: pytest.Pytester):
    pytester.makeini(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\n" if has("pytest_asyncio") else "[pytest]"
    )
    return lambda text: pytester.makepyfile(test_them=MODELS + text)


def has(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def test_reruns_validate_again(pytester: pytest.Pytester, write):
    pytest.importorskip("pytest_rerunfailures")
    write(HIDDEN + "def test_it():\n    Hidden()(X)\n")
    result = pytester.runpytest_inprocess(*VALIDATE, "--reruns=2")
    assert result.parseoutcomes() == {"failed": 1, "rerun": 2}


def test_a_timeout_in_forward_leaves_nothing_on(pytester: pytest.Pytester, write):
    pytest.importorskip("pytest_timeout")
    write(
        """
import time

CALL = []

class Slow(nn.Module):
    def forward(self, x):
        x = x + 1
        time.sleep(30)

@pytest.mark.timeout(0.5)
def test_slow():
    Slow()(X)

def test_after():
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    assert nn.ReLU()(X).sum() == 8
"""
    )
    result = pytester.runpytest_inprocess(*VALIDATE, "--timeout-method=signal")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Timeout*", "*: 1 proven, 1 left out", "left out: 1 call: it raised *"])


def test_async_tests(pytester: pytest.Pytester, write):
    pytest.importorskip("pytest_asyncio")
    write(
        """
import asyncio

@pytest.mark.asyncio
async def test_it():
    first = asyncio.create_task(call(3))
    assert (await call(2)).shape == (2, 2)
    assert (await first).shape == (2, 3)

async def call(width):
    await asyncio.sleep(0)
    return nn.Linear(4, width)(X)
"""
    )
    result = pytester.runpytest_inprocess(*VALIDATE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["2 outermost module calls in 1 test: 2 proven"])


def test_examples_of_hypothesis(pytester: pytest.Pytester, write):
    pytest.importorskip("hypothesis")
    write(
        """
from hypothesis import given, settings
from hypothesis import strategies as st

@settings(max_examples=20, database=None)
@given(st.integers(1, 4), st.floats(0, 1))
def test_it(rows, value):
    assert nn.Linear(4, 2)(torch.full((rows, 4), value)).shape == (rows, 2)
"""
    )
    result = pytester.runpytest_inprocess(*VALIDATE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["20 outermost module calls in 1 test: * proven, * like one before"])


def test_the_deadline_of_an_example_is_for_the_test_alone(
    pytester: pytest.Pytester, write, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("hypothesis")
    validate = pytest_torchlens.run.module_calls.validate_once

    def slowly(*args):
        time.sleep(0.5)
        return validate(*args)

    monkeypatch.setattr("pytest_torchlens.run.module_calls.validate_once", slowly)
    write(
        """
from hypothesis import given, settings
from hypothesis import strategies as st

class TestIt:
    @settings(max_examples=5, deadline=100, database=None)
    @given(st.floats(0, 1))
    def test_it(self, value):
        nn.Linear(4, 2)(X * value)
"""
    )
    pytester.runpytest_inprocess(*VALIDATE).assert_outcomes(passed=1)


def test_random_order(pytester: pytest.Pytester, write):
    pytest.importorskip("pytest_randomly")
    write("\n".join(f"def test_{i}():\n    assert nn.Linear(4, 3)(X).isfinite().all()\n" for i in range(4)))
    result = pytester.runpytest_inprocess(*VALIDATE, "-p", "randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["4 outermost module calls in 4 tests: 1 proven, 3 like one before"])


def test_coverage_counts_forward(pytester: pytest.Pytester, write):
    pytest.importorskip("pytest_cov")
    pytester.makepyfile(
        net="from torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    )
    write("from net import Net\n\ndef test_it():\n    assert Net()(X).sum() == 16\n")
    result = pytester.runpytest_subprocess(
        "--lens-validate", "--cov=net", "--cov-report=term", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 outermost module call in 1 test: 1 proven", "net.py * 100%"])
