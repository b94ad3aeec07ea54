"""Models that pytest fails though by themselves they did well, told alike wherever a run is told of."""

from __future__ import annotations

import csv
import html

import pytest

REASON = "it passed, although an expected failure is named: known (issue 7)"
ADVICE = "take the 'xfail' out of its zoo file"
ASKED = ("--lens-validate", "--lens-table=t.csv", "--lens-report=report", "--lens-report-md=report.md")


@pytest.fixture
def mended(tiny_zoo) -> None:
    tiny_zoo.write_text(tiny_zoo.read_text() + 'rules:\n  - {match: [mlp, raises, drifts], xfail: "known (issue 7)"}\n')


def row(pytester: pytest.Pytester, model: str) -> dict[str, str]:
    with (pytester.path / "t.csv").open(newline="") as file:
        return next(row for row in csv.DictReader(file) if row["model"] == model)


def page(pytester: pytest.Pytester, name: str) -> str:
    return html.unescape((pytester.path / "report" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("isolate", ["--lens-isolate", "--lens-no-isolate"])
def test_an_unexpected_pass(pytester: pytest.Pytester, mended, monkeypatch: pytest.MonkeyPatch, isolate: str):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", *ASKED, isolate)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "tiny:mlp * FAILED unexpected pass *",
            f"tiny:mlp FAILED by an unexpected pass: {REASON}",
            f"  to do: *{ADVICE}*",
        ]
    )
    (annotation,) = (line for line in result.outlines if line.startswith("::error"))
    assert "tiny%3Amlp failed by an unexpected pass" in annotation
    assert REASON in annotation
    found = row(pytester, "mlp")
    assert (found["verdict"], found["reason"]) == ("failed by an unexpected pass", REASON)
    markdown = html.unescape((pytester.path / "report.md").read_text(encoding="utf-8"))
    assert f"**tiny:mlp** by an unexpected pass: {REASON}" in markdown
    assert ADVICE in markdown
    told = page(pytester, "models/tiny/mlp.html")
    assert all(text in told for text in ("Failed by an unexpected pass", REASON, ADVICE))
    assert "<small>unexpected pass</small>" in page(pytester, "index.html")
    assert REASON in page(pytester, "report.json")


def test_an_unexpected_pass_in_a_worker_of_xdist(pytester: pytest.Pytester, mended):
    pytest.importorskip("xdist")
    result = pytester.runpytest_subprocess("--lens-zoo=tiny:mlp", "--lens-table=t.csv", "-n1")
    result.stdout.fnmatch_lines([f"tiny:mlp FAILED by an unexpected pass: {REASON}"])
    assert row(pytester, "mlp")["reason"] == REASON


def test_expected_failures_are_told_as_such(pytester: pytest.Pytester, mended):
    pytester.runpytest_inprocess("--lens-zoo=tiny:raises,drifts", *ASKED).assert_outcomes(xfailed=2)
    raises, drifts = row(pytester, "raises"), row(pytester, "drifts")
    assert (raises["verdict"], raises["reason"]) == ("xfailed in forward", "RuntimeError: boom in forward")
    assert (drifts["verdict"], drifts["reason"][:8]) == ("xfailed", "failed (")


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_a_hook_that_fails_a_model(pytester: pytest.Pytester, tiny_zoo, when: str):
    pytester.makeconftest(f"def pytest_runtest_{when}(item): raise RuntimeError('the hook broke')")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", *ASKED, "--tb=no")
    place = "build" if when == "setup" else "pytest"  # before the hook broke, or never
    result.stdout.fnmatch_lines([f"tiny:mlp FAILED in {place}: *RuntimeError: the hook broke"])
    found = row(pytester, "mlp")
    assert found["verdict"] == f"failed in {place}"
    assert found["reason"].endswith("RuntimeError: the hook broke")


def test_a_model_that_differs_from_its_baseline_is_no_pass(pytester: pytest.Pytester, tiny_zoo):
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate", "--lens-update=all")
    tiny_zoo.write_text(tiny_zoo.read_text() + "rules:\n  - {match: mlp, kwargs: {width: 5}}\n")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", *ASKED).assert_outcomes(failed=1)
    assert row(pytester, "mlp")["verdict"].startswith("failed in compare")
    assert row(pytester, "mlp")["reason"]
