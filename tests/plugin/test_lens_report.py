from __future__ import annotations

import json

import pytest

from pytest_torchlens.records import Outcome
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import Stage
from pytest_torchlens.records import from_json

pytestmark = pytest.mark.usefixtures("tiny_zoo")


def read(pytester: pytest.Pytester) -> RunReport:
    return from_json((pytester.path / "out" / "report.json").read_text(encoding="utf-8"), RunReport)


def test_it_holds_every_model_with_its_pages(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear,mlp", "--lens-validate", "--lens-report=out")
    result.assert_outcomes(passed=2)
    report = read(pytester)
    assert [model.name for model in report.models] == ["linear", "mlp"]
    assert report.environment.torch
    assert "--lens-validate" in report.command
    for model in report.models:
        assert model.outcome is Outcome.PASSED
        assert model.stage is Stage.DONE
        assert model.nodeid == f"model_zoo_configs/tiny.yaml::{model.name}"
        assert model.verdict is not None
        assert model.forward_runs >= 3
        assert model.inputs == ("input: float32[2, 4]",)
        assert model.outputs == ("float32[2, 2]",)
        assert (pytester.path / "out" / "models" / "tiny" / f"{model.name}.html").is_file()
    result.stdout.fnmatch_lines(["report: file://*/out/index.html"])
    assert (pytester.path / "out" / "index.html").is_file()


def test_it_tells_of_failures_and_skips(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.write_text(tiny_zoo.read_text() + "rules:\n  - {match: linear, skip: too dull}\n")
    pytester.runpytest_inprocess("--lens-zoo=tiny:broken,linear,raises", "--lens-report=out")
    broken, linear, raises = read(pytester).models
    assert (broken.outcome, broken.stage) == (Outcome.FAILED, Stage.BUILD)
    assert (raises.outcome, raises.stage) == (Outcome.FAILED, Stage.FORWARD)
    assert raises.error is not None
    assert raises.error.message == "boom in forward"
    assert "in inner" in raises.error.traceback
    assert "pytest_torchlens" not in raises.error.traceback
    assert linear.outcome is Outcome.SKIPPED
    assert "skipped: too dull" in linear.notes


def test_what_had_finished_is_told_after_ctrl_c(pytester: pytest.Pytester):
    models = "--lens-zoo=tiny:drifts,interrupts,linear"
    result = pytester.runpytest_subprocess(models, "--lens-report=out")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert [model.name for model in read(pytester).models] == ["drifts"]


def test_a_folder_in_the_ini_file(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\nlens_report = out")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp")
    assert len(read(pytester).models) == 1


def test_a_file_in_its_place_is_a_usage_error(pytester: pytest.Pytester):
    pytester.path.joinpath("out").write_text("")
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-report=out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--lens-report: *out cannot be written: Not a directory; a file stands where a folder is needed: *"]
    )


def test_a_folder_that_cannot_be_made_is_a_usage_error(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-report=/proc/out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--lens-report: /proc/out cannot be written: Permission denied; *"])


def test_a_report_that_cannot_be_written_fails_the_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    def no_space(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("pytest_torchlens.report.write_site", no_space)
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-report=out")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: --lens-report: not written: OSError: No space left on device"])


def test_junit_has_a_few_properties_of_each_model(pytester: pytest.Pytester):
    arguments = ["--lens-zoo=tiny:mlp", "--lens-validate", "--junitxml=junit.xml"]
    pytester.runpytest_inprocess(*arguments)
    text = pytester.path.joinpath("junit.xml").read_text()
    assert '<property name="lens.status" value="passed"' in text
    assert '<property name="lens.ops" value="3"' in text
    assert '<property name="lens.params" value="23"' in text
    assert '<property name="lens.flops" value="72"' in text
    pytester.makeini("[pytest]\nlens_junit_properties = false")
    pytester.runpytest_inprocess(*arguments)
    assert "<property" not in pytester.path.joinpath("junit.xml").read_text()


def test_json_is_plain(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-report=out")
    data = json.loads((pytester.path / "out" / "report.json").read_text(encoding="utf-8"))
    assert data["models"][0]["name"] == "mlp"


def test_verbose_runs_tell_more_of_each_model(pytester: pytest.Pytester):
    assert "inputs" not in pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate").stdout.str()
    once = pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate", "-v")
    once.stdout.fnmatch_lines(["tiny:mlp", "  inputs * float32*", "  replay * passed: * activations"])
    once.stdout.no_fnmatch_line("*slowest*")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "-vv").stdout.fnmatch_lines(["  slowest *linear_*"])
