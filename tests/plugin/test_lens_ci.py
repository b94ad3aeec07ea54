"""`--lens-report-md`, `--lens-json`, and what GitHub reads."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")


def test_markdown_and_json(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,linear", "--lens-report-md=out/run.md", "--lens-json=run.json")
    text = (pytester.path / "out" / "run.md").read_text(encoding="utf-8")
    assert text.startswith("### pytest-torchlens: ⚪ 2 not-validated")
    run = json.loads((pytester.path / "run.json").read_text(encoding="utf-8"))
    assert [model["name"] for model in run["models"]] == ["linear", "mlp"]
    assert run["models"][0]["outcome"] == "passed"
    assert "operations" not in run["models"][0]["history"]


def test_files_in_the_ini_file(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\nlens_report_md = run.md\nlens_json = run.json\n")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp")
    assert (pytester.path / "run.md").exists()
    assert (pytester.path / "run.json").exists()


def test_the_summary_of_a_github_step_is_added_to(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    summary = pytester.path / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp")
    assert summary.read_text(encoding="utf-8").startswith("before\n### pytest-torchlens: ")


def test_failures_annotate_a_github_job_and_no_other(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    arguments = ("--lens-zoo=tiny:drifts", "--lens-validate")
    assert "::error" not in pytester.runpytest_inprocess(*arguments).stdout.str()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = pytester.runpytest_inprocess(*arguments)
    result.stdout.fnmatch_lines(["::error file=*,title=lens%3A tiny%3Adrifts failed in *::*"])


@pytest.mark.parametrize("option", ["--lens-report-md", "--lens-json"])
def test_a_folder_in_its_place_is_a_usage_error(pytester: pytest.Pytester, option: str):
    pytester.mkdir("taken")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", f"{option}=taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{option}: *taken cannot be written: Is a directory; name a file, not a folder"])


def test_a_file_that_cannot_be_written_fails_the_run(pytester: pytest.Pytester):
    pytester.makeconftest("import pathlib\ndef pytest_runtest_setup(): pathlib.Path('run.json').mkdir()")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-json=run.json", "--lens-report-md=run.md")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: --lens-json: *run.json cannot be written: *"])
    assert "mlp" in (pytester.path / "run.md").read_text()
