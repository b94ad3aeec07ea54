"""Models that tests called have pages in the run's report, and fixtures make more of them."""

from __future__ import annotations

import pytest

import pytest_torchlens.plugin.autotrace
import pytest_torchlens.run.module_calls  # noqa: F401 - loaded once for all inner pytests
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import Status
from pytest_torchlens.records import from_json

TESTS = """
import torch
from torch import nn

X = torch.ones(2, 4)

class Hidden(nn.Module):
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return x.cos()
"""


def read(pytester: pytest.Pytester) -> RunReport:
    return from_json((pytester.path / "out" / "report.json").read_text(encoding="utf-8"), RunReport)


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "workers"])
@pytest.mark.parametrize("option", ["--lens-json=file", "--lens-report-md=file", "--lens-table=file"])
def test_each_file_has_the_models_without_a_report_too(pytester: pytest.Pytester, option: str, workers: list[str]):
    if workers:
        pytest.importorskip("xdist")
    pytester.makepyfile(test_them=TESTS + "def test_it():\n    nn.Linear(4, 3)(X)\n")
    run = pytester.runpytest_subprocess if workers else pytester.runpytest_inprocess
    run("--lens-validate", option, *workers).assert_outcomes(passed=1)
    text = (pytester.path / "file").read_text(encoding="utf-8").replace("&#95;", "_")
    assert "test_them.py::test_it::Linear" in text


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "workers"])
def test_each_validated_model_has_a_page(pytester: pytest.Pytester, workers: list[str]):
    if workers:
        pytest.importorskip("xdist")
    pytester.makepyfile(
        test_them=TESTS
        + """
def test_a():
    nn.Linear(4, 3)(X)
    nn.Linear(4, 2)(X)

def test_b():
    Hidden()(X)
"""
    )
    run = pytester.runpytest_subprocess if workers else pytester.runpytest_inprocess
    result = run("--lens-validate", "--lens-report=out", *workers)
    result.assert_outcomes(passed=1, failed=1)
    models = {model.name: model for model in read(pytester).models}
    assert sorted(models) == [
        "test_them.py::test_a::Linear",
        "test_them.py::test_a::Linear (2)",
        "test_them.py::test_b::Hidden",
    ]
    hidden = models["test_them.py::test_b::Hidden"]
    assert (hidden.zoo, hidden.nodeid, hidden.outcome) == ("tests", "test_them.py::test_b", Outcome.FAILED)
    assert hidden.verdict is not None
    assert hidden.verdict.status is Status.FAILED
    assert len(list((pytester.path / "out" / "models" / "tests").glob("*.html"))) == 3
    result.stdout.fnmatch_lines(["report: file://*/out/index.html"])


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "workers"])
def test_a_model_that_a_fixture_calls_at_its_end_has_a_page(pytester: pytest.Pytester, workers: list[str]):
    pytester.makepyfile(
        test_it=TESTS
        + """
import pytest

@pytest.fixture
def late():
    yield
    nn.Linear(4, 3)(X)

def test_a(late): pass
"""
    )
    result = pytester.runpytest_inprocess("--lens-validate", "--lens-report=out", *workers)
    result.assert_outcomes(passed=1)
    names = [model.name.rpartition("::")[2] for model in read(pytester).models]
    assert names == ["Linear"]


def test_lens_report_gives_a_page(pytester: pytest.Pytester):
    pytester.makepyfile(
        TESTS
        + """
def test_it(lens_trace, lens_report):
    model = nn.Sequential(nn.Linear(4, 3))
    assert lens_report(lens_trace(model, X), name="traced").history.num_operations == 1
    assert lens_report(model, X).history.num_operations == 1
"""
    )
    result = pytester.runpytest_inprocess("--lens-report=out")
    result.assert_outcomes(passed=1)
    names = [model.name.rpartition("::")[2] for model in read(pytester).models]
    assert names == ["traced", "Sequential"]
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_name_may_contain_colons(pytester: pytest.Pytester):
    pytester.makepyfile(
        test_it=TESTS
        + """
def test_it(lens_report):
    lens_report(nn.Linear(4, 3), X, name="encoder::first")
"""
    )
    pytester.runpytest_inprocess("--lens-report=out").assert_outcomes(passed=1)
    (model,) = read(pytester).models
    assert (model.name, model.nodeid) == ("test_it.py::test_it::encoder::first", "test_it.py::test_it")


def test_what_lens_trace_recorded_is_proved(pytester: pytest.Pytester):
    pytester.makepyfile(
        test_mine=TESTS
        + """
def test_good(lens_trace, lens_validate):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    history = lens_trace(model, X)
    assert history["linear_1_1"].tensor_contents.shape == (2, 3)
    assert lens_validate(model, X)

class Sneaky(nn.Module):
    def forward(self, x):
        y = x * 2
        with torch._C.DisableTorchFunction():
            y.add_(1)
        return y + 0

def test_bad(lens_trace):
    lens_trace(Sneaky(), X)
"""
    )
    result = pytester.runpytest_inprocess("--lens-validate", "--lens-report=out", "test_mine.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["2 outermost module calls in 2 tests: 1 failed, 1 proven"])
    assert [model.outcome for model in read(pytester).models] == [Outcome.PASSED, Outcome.FAILED]


def test_a_traceback_has_the_models_frames_alone(pytester: pytest.Pytester):
    pytester.makepyfile(
        test_it=TESTS
        + """
class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(nn.functional.gumbel_softmax(x))

def test_traced(lens_trace):
    lens_trace(Net(nn.Linear(3, 2)), X)

def test_called():
    Net(nn.Linear(3, 2))(X)

def test_no_model(lens_trace):
    lens_trace(3, X)
"""
    )
    result = pytester.runpytest_inprocess("--lens-validate", "-rN")
    result.assert_outcomes(failed=3)
    text = result.stdout.str().partition("= FAILURES =")[2]
    assert "/pytest_torchlens/capture/" not in text
    assert "/pytest_torchlens/run/" not in text
    result.stdout.fnmatch_lines(
        ["test_it.py:13: in forward", ">*lens_trace(3, X)", "*TraceError: expected a torch.nn*"]
    )
