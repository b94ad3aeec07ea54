"""One fault is told once, however many tests it fails; each test keeps its own outcome."""

from __future__ import annotations

import json
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

import pytest_torchlens.plugin.autotrace
import pytest_torchlens.run.module_calls  # noqa: F401 - loaded once for all inner pytests
from pytest_torchlens.plugin.faults import told_once
from pytest_torchlens.records import TracedTest
from pytest_torchlens.records import to_json

MODELS = """
import pytest
import torch
from torch import nn

X = torch.ones(2, 4)

class Hidden(nn.Module):
    def __init__(self, other=False):
        super().__init__()
        self.other = other
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            if self.other:
                return x.sin()
            return x.cos()

class AlsoHidden(Hidden):
    pass
"""
FULL = "completeness: 1 of 1 dispatcher operations failed"


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Return what runs tests that have models at hand, and returns the result with its lines."""

    def run(tests, *args):
        pytester.makepyfile(test_them=MODELS + tests)
        result = pytester.runpytest_inprocess("--lens-validate", "-p", "no:randomly", *args)
        return result, result.outlines

    return run


def having(lines, text):
    return [line for line in lines if text in line]


TWO = "def test_a(): Hidden()(X)\ndef test_b(): Hidden()(torch.ones(3, 4))\n"


def test_two_tests_with_one_fault_are_told_once(run):
    result, lines = run(TWO)
    result.assert_outcomes(failed=2)
    assert len(having(lines, FULL)) == 1
    assert len(having(lines, "___ test_a ___")) == 1
    assert not having(lines, "___ test_b ___")
    result.stdout.fnmatch_lines(
        [
            "Hidden: validation failed",
            "the same fault in 1 more call, in 1 other test: test_them.py::test_b",
            FULL,
            "2 outermost module calls in 2 tests: 2 failed",
            "FAILED test_them.py::test_a: Hidden: failed*",
            "  the same fault in 1 more call, in 1 other test: test_them.py::test_b",
            "FAILED test_them.py::test_a - *",
            "FAILED test_them.py::test_b - *",
        ]
    )


DIFFERENT = {
    "another line": "Hidden(other=True)(X)",
    "another class": "AlsoHidden()(X)",
}


@pytest.mark.parametrize("call", DIFFERENT.values(), ids=DIFFERENT)
def test_different_faults_are_told_apart(run, call):
    result, lines = run(f"def test_a(): Hidden()(X)\ndef test_b(): {call}\n")
    result.assert_outcomes(failed=2)
    assert len(having(lines, FULL)) == 2
    assert not having(lines, "same fault")


BEHIND_OUR_BACK = """
import ctypes
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(4))
    def forward(self, x):
        y = x + self.n
        ctypes.memset(self.n.data_ptr(), 1, 4)
        return y{end}

def test_it():
    print("printed{end}")
    Net()(torch.ones(4))
"""
UNSEEN_OPERATION = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return [x{end}]

def test_it():
    print("printed{end}")
    Net()("a")
"""


@pytest.mark.parametrize("processes", [(), ("-n2",)], ids=["one process", "two workers"])
@pytest.mark.parametrize("text", [BEHIND_OUR_BACK, UNSEEN_OPERATION], ids=["failed", "unproven"])
@pytest.mark.filterwarnings("ignore")
def test_different_models_of_one_name_are_told_apart(pytester: pytest.Pytester, text, processes):
    pytester.makepyfile(test_a=text.format(end=""), test_b=text.format(end=" * 2"))
    result = pytester.runpytest_inprocess("--lens-validate", "--lens-fail-on=unproven", "-p", "no:randomly", *processes)
    result.assert_outcomes(failed=2)
    assert len(having(result.outlines, "___ test_it ___")) == 2
    assert len(having(result.outlines, "printed")) == 2
    assert not having(result.outlines, "the same")


def test_different_causes_are_told_apart(run):
    modes = """
from torch.utils._python_dispatch import TorchDispatchMode

class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * 2

class Other(Doubling):
    pass

@pytest.mark.parametrize("mode", [Doubling, Other])
def test_it(mode):
    model = Plain()
    with mode():
        model(X)

class Plain(nn.Module):
    def forward(self, x):
        return x.sin()
"""
    result, lines = run(modes)
    result.assert_outcomes(failed=2)
    assert len(having(lines, "it ran under the mode Doubling,")) == 1
    assert len(having(lines, "it ran under the mode Other,")) == 1
    assert not having(lines, "same fault")


def test_a_test_with_a_fault_of_its_own_tells_only_that(run):
    result, lines = run("def test_a(): Hidden()(X)\ndef test_b():\n    Hidden()(torch.ones(3))\n    AlsoHidden()(X)\n")
    result.assert_outcomes(failed=2)
    assert len(having(lines, FULL)) == 2
    assert having(lines, "Hidden: validation failed as in test_them.py::test_a")
    assert having(lines, "___ test_b ___")


def test_calls_of_one_test_are_told_once(run):
    result, lines = run("def test_a():\n    for n in range(1, 4): Hidden()(torch.ones(n))\n")
    result.assert_outcomes(failed=1)
    assert len(having(lines, FULL)) == 1
    assert len(having(lines, "the same fault in 2 more calls of this test")) == 2  # in the failure and in the summary
    assert having(lines, "3 outermost module calls in 1 test: 3 failed")


def test_a_test_that_fails_by_itself_is_shown(run):
    result, lines = run("def test_a(): Hidden()(X)\ndef test_b():\n    Hidden()(torch.ones(3))\n    assert X is None\n")
    result.assert_outcomes(failed=2)
    assert len(having(lines, FULL)) == 1
    assert having(lines, "___ test_b ___")
    assert having(lines, "assert X is None")


CONSTANT = """
class Constant(nn.Module):
    def forward(self, x):
        return torch.zeros(4)

class Raises(nn.Module):
    def forward(self, x):
        raise ValueError

def test_a(): Constant()(X)
def test_b(): Constant()(torch.ones(3))
def test_c():
    with pytest.raises(ValueError): Raises()(X)
def test_d():
    with pytest.raises(ValueError): Raises()(torch.ones(3))
"""


def test_what_else_fails_tests_is_told_once(run):
    result, lines = run(CONSTANT, "--lens-fail-on=unproven,unvalidated")
    result.assert_outcomes(failed=4)
    assert [line for line in lines if line.startswith("lens: ") and "lens: each" not in line] == [
        *having(lines, "lens: Constant: validation unproven (zeros_1_1: the output depends on no input")[:1],
        "lens: 1 call left out: it raised",
    ]
    assert having(lines, "the same in 1 other test: test_them.py::test_b")
    assert having(lines, "the same in 1 other test: test_them.py::test_d")
    assert len(having(lines, "FAILED test_them.py::test_")) == 4


@pytest.mark.parametrize("hidden", [{}, {"_pdbshown": True}], ids=["shown", "hidden by pytest"])
def test_what_pytest_hides_stays_hidden(hidden):
    text = to_json(TracedTest(calls=1))
    first, other = (
        SimpleNamespace(nodeid=name, when="call", longrepr="lens: alike", sections=[], lens_traced_test=text, **hidden)
        for name in ("test_a", "test_b")
    )
    before = dict(vars(other))
    with told_once({"failed": [first, other]}, lambda *_: "", lambda _: ""):
        assert vars(other)["_pdbshown"]
        assert first.sections == [("lens", "the same in 1 other test: test_b")]
    assert vars(other) == before


def test_few_names_stand_for_many_tests(run):
    tests = '@pytest.mark.parametrize("n", range(1, 9))\ndef test_n(n): Hidden()(torch.ones(n))\n'
    result, lines = run(tests)
    result.assert_outcomes(failed=8)
    assert len(having(lines, FULL)) == 1
    names = "test_them.py::test_n[2], test_them.py::test_n[3], test_them.py::test_n[4] and 4 more"
    assert len(having(lines, f"the same fault in 7 more calls, in 7 other tests: {names}")) == 2
    assert len(having(lines, "FAILED test_them.py::test_n[")) == 9  # eight of pytest's, one of the summary
    assert having(lines, "8 outermost module calls in 8 tests: 8 failed")


def test_a_teardown_has_its_own_place(run):
    result, lines = run(
        "@pytest.fixture\ndef late():\n    yield\n    Hidden()(X)\n\n"
        "def test_a(late): pass\ndef test_b(): Hidden()(torch.ones(3))\n"
    )
    result.assert_outcomes(passed=1, failed=1, errors=1)
    assert len(having(lines, FULL)) == 1
    assert having(lines, "FAILED test_them.py::test_a (teardown): Hidden")


def test_every_test_keeps_its_result_in_junit(run, pytester: pytest.Pytester):
    run(TWO, "--junitxml=out.xml")
    (suite,) = ET.parse(pytester.path / "out.xml").getroot()  # noqa: S314 - our own file
    assert [suite.get("tests"), suite.get("failures")] == ["2", "2"]
    failures = [case.find("failure") for case in suite]
    assert all("Hidden: validation failed" in failure.get("message") for failure in failures)


def test_results_of_workers_are_grouped_too(run):
    tests = "".join(f"def test_{n}(): Hidden()(torch.ones({n}))\n" for n in range(1, 7))
    result, lines = run(tests, "-n2")
    result.assert_outcomes(failed=6)
    assert len(having(lines, FULL)) == 1
    assert len(having(lines, "the same fault in 5 more calls, in 5 other tests: ")) == 2
    assert having(lines, "6 outermost module calls in 6 tests: 6 failed")


def test_tables_have_one_row_for_a_fault_and_reports_every_test(run, pytester: pytest.Pytester):
    result, lines = run(TWO + "def test_c(): AlsoHidden()(X)\n", "--lens-report=out")
    result.assert_outcomes(failed=3)
    rows = [line for line in lines if line.startswith("tests:") and "FAILED completeness at" in line]
    assert ["(2 calls)" in row for row in rows] == [True, False]
    assert len(having(lines, "  also: 1 more call with the same fault")) == 1
    report = json.loads((pytester.path / "out" / "report.json").read_text())
    assert [model["outcome"] for model in report["models"]] == ["failed"] * 3
