"""A report names every test whose calls were not validated, by reason."""

from __future__ import annotations

import html
import json

import pytest

import pytest_torchlens.plugin.autotrace
import pytest_torchlens.run.module_calls  # noqa: F401 - loaded once for all inner pytests
from pytest_torchlens.records import TESTS_ZOO
from pytest_torchlens.records import LeftOutCalls
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import RunReport
from pytest_torchlens.report.folder import RunFolder
from pytest_torchlens.report.paths import page_path

TESTS = """
import pytest
import torch
from torch import nn

X = torch.ones(2, 4)

class Raises(nn.Module):
    def forward(self, x):
        raise ValueError

@pytest.mark.parametrize("text", ["<b>&", "red\\x1b[31m", *map(str, range(12))])
def test_raises(text):
    with pytest.raises(ValueError): Raises()(X)

@pytest.fixture
def late():
    yield
    with pytest.raises(ValueError): Raises()(X)

def test_three_calls(late):
    for _ in range(2):
        with pytest.raises(ValueError): Raises()(X)

@pytest.mark.lens(seconds=0.0)
def test_no_time(): nn.ReLU()(X)
"""
RAISED, NO_TIME = "it raised", "the time for this test was up"


@pytest.mark.parametrize("processes", [(), ("-n2",)], ids=["one process", "two workers"])
@pytest.mark.filterwarnings("ignore")
def test_the_report_names_all_tests_and_the_terminal_one(pytester: pytest.Pytester, processes):
    pytester.makepyfile(test_them=TESTS)
    result = pytester.runpytest_inprocess("--lens-validate", "--lens-report=out", "-p", "no:randomly", *processes)
    result.assert_outcomes(passed=16)
    result.stdout.fnmatch_lines(
        ["18 outermost module calls in 16 tests: 18 left out", f"left out: 17 calls: {RAISED} (first in *"]
    )
    assert sum("test_raises" in line for line in result.outlines) <= 1
    report = json.loads((pytester.path / "out" / "report.json").read_text(encoding="utf-8"))
    left_out = {one["reason"]: one["tests"] for one in report["left_out"]}
    assert list(left_out) == [RAISED, NO_TIME]
    assert len(left_out[RAISED]) == 15
    assert left_out[RAISED]["test_them.py::test_three_calls"] == 3
    assert left_out[NO_TIME] == {"test_them.py::test_no_time": 1}
    page = (pytester.path / "out" / "index.html").read_text(encoding="utf-8")
    assert all(html.escape(name) in page for name in left_out[RAISED])
    assert "17 calls</small>" in page.replace(" in 15 tests", "")
    assert "<b>&" not in page
    assert "\x1b" not in page


def test_without_left_out_calls_the_page_says_nothing_of_them(pytester: pytest.Pytester):
    pytester.makepyfile(test_them="import torch\ndef test_it(): torch.nn.Linear(4, 4)(torch.ones(2, 4))\n")
    pytester.runpytest_inprocess("--lens-validate", "--lens-report=out").assert_outcomes(passed=1)
    assert json.loads((pytester.path / "out" / "report.json").read_text(encoding="utf-8"))["left_out"] == []
    assert "not validated" not in (pytester.path / "out" / "index.html").read_text(encoding="utf-8")


def test_a_report_in_one_file_names_them_too(pytester: pytest.Pytester):
    pytester.makepyfile(test_them=TESTS)
    result = pytester.runpytest_inprocess("--lens-validate", "--lens-json=run.json", "-k", "no_time")
    result.assert_outcomes(passed=1, deselected=15)
    result.stdout.no_fnmatch_line("*= lens =*")
    (left_out,) = json.loads((pytester.path / "run.json").read_text(encoding="utf-8"))["left_out"]
    assert (left_out["reason"], left_out["tests"]) == (NO_TIME, {"test_them.py::test_no_time": 1})


def test_without_a_report_none_is_written(pytester: pytest.Pytester):
    pytester.makepyfile(test_them=TESTS)
    result = pytester.runpytest_inprocess("--lens-validate")
    result.assert_outcomes(passed=16)
    result.stdout.no_fnmatch_line("*= lens =*")
    assert not (pytester.path / "out").exists()


def test_merged_runs_forget_a_test_of_which_a_later_run_has_a_report(tmp_path):
    report = ModelReport(zoo=TESTS_ZOO, name="test_a::Net", nodeid="test_a")
    left_out = (LeftOutCalls(reason=RAISED, tests={"test_a": 2, "test_b": 1}),)
    first = RunReport(models=(report,), left_out=left_out)
    later = RunReport(models=(report,))
    folders = [RunFolder(tmp_path, run, {str(page_path(report)): tmp_path}) for run in (first, later)]
    assert [one.tests for one in RunFolder.join(folders).run.left_out] == [{"test_b": 1}]
    assert RunFolder.join(folders[::-1]).run.left_out == left_out


def test_merged_runs_count_each_test_as_in_the_last(tmp_path):
    first = LeftOutCalls(reason=RAISED, tests={"test_a": 2, "test_b": 1})
    again = (LeftOutCalls(reason=NO_TIME, tests={"test_a": 4}), LeftOutCalls(reason=RAISED, tests={"test_c": 1}))
    runs = [RunReport(left_out=(first,)), RunReport(left_out=again)]
    merged = RunFolder.join([RunFolder(tmp_path, run, {}) for run in runs]).run.left_out
    assert [(one.reason, one.tests, one.calls) for one in merged] == [
        (NO_TIME, {"test_a": 4}, 4),
        (RAISED, {"test_b": 1, "test_c": 1}, 2),
    ]
