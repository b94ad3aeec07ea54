"""What the hooks of a conftest file do to the models of a zoo, and to what is told of them."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")
MODEL = "--lens-zoo=tiny:linear"


def report_of(pytester: pytest.Pytester):
    return json.loads((pytester.path / "out" / "report.json").read_text(encoding="utf-8"))


CONFIGURES = """
import torch

def pytest_lens_configure_model(config, case, model):
    assert (case.zoo, case.name) == ("tiny", "linear")
    torch.nn.init.constant_(model.weight, 2.0)
    model.register_forward_hook(lambda module, args, output: output.relu())
"""


def test_a_model_is_configured_after_it_was_built(pytester: pytest.Pytester):
    pytester.makeconftest(CONFIGURES)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.lens_zoo("tiny", include="linear")
        def test_it(lens_model):
            assert (lens_model.model.weight == 2).all()
        """
    )
    result = pytester.runpytest_inprocess(
        "test_a_model_is_configured_after_it_was_built.py", MODEL, "--lens-report=out"
    )
    result.assert_outcomes(passed=2)
    (model,) = report_of(pytester)["models"]
    assert model["history"]["num_operations"] == 2


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("torch.rand(3, 4)", "input: float32[3, 4]"),
        ("[torch.rand(5, 4)]", "input: float32[5, 4]"),
        ("{'input': torch.rand(7, 4)}", "input: float32[7, 4]"),
        ("None", "input: float32[2, 4]"),
    ],
)
def test_inputs_are_made(pytester: pytest.Pytester, made: str, told: str):
    pytester.makeconftest(
        f"import torch\n\ndef pytest_lens_make_inputs(config, case, model):\n    assert model.in_features == 4\n"
        f"    return {made}\n"
    )
    pytester.runpytest_inprocess(MODEL, "--lens-report=out", "--lens-validate").assert_outcomes(passed=1)
    (model,) = report_of(pytester)["models"]
    assert model["inputs"] == [told]


def test_other_processes_cannot_ask_hooks_about_models(pytester: pytest.Pytester):
    pytester.makeconftest(CONFIGURES)
    result = pytester.runpytest_inprocess(MODEL, "--lens-isolate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --lens-isolate runs models in processes that load no conftest.py*"])


@pytest.mark.parametrize("arguments", [["--lens-isolate"], ["--lens-validate", f"--lens-against={sys.executable}"]])
def test_nor_those_of_a_conftest_that_is_loaded_as_tests_are_collected(pytester: pytest.Pytester, arguments: list[str]):
    inside = pytester.mkdir("inside")
    (inside / "conftest.py").write_text(CONFIGURES, encoding="utf-8")
    (inside / "test_inside.py").write_text("def test_it():\n    pass\n", encoding="utf-8")
    result = pytester.runpytest_inprocess(".", MODEL, *arguments)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["--lens-* runs models in processes that load no conftest.py*"])


def test_facts_of_the_environment_are_in_the_report(pytester: pytest.Pytester):
    pytester.makeconftest(
        """
def pytest_lens_environment(config, environment):
    return {"commit": "abc", "on": environment.python}
"""
    )
    pytester.runpytest_inprocess(MODEL, "--lens-report=out").assert_outcomes(passed=1)
    settings = report_of(pytester)["environment"]["settings"]
    assert settings["commit"] == "abc"
    assert settings["on"].startswith("3.")
    assert "default_dtype" in settings
    assert "abc" in (pytester.path / "out" / "index.html").read_text(encoding="utf-8")


def test_notes_are_in_the_report_of_a_model(pytester: pytest.Pytester):
    pytester.makeconftest(
        """
def pytest_lens_report_notes(config, report):
    return ["owner: " + report.name, "second"]
"""
    )
    pytester.runpytest_inprocess(MODEL, "--lens-report=out").assert_outcomes(passed=1)
    (model,) = report_of(pytester)["models"]
    assert model["notes"] == ["owner: linear", "second"]


DRIFTED = """
import torch

def pytest_lens_configure_model(config, case, model):
    if config.getoption("lens_update") == []:
        torch.nn.init.constant_(model.weight, 2.0)

def pytest_lens_compare(config, key, comparison):
    assert key == "tiny/linear"
    return {answer}
"""


@pytest.mark.parametrize(("answer", "outcome"), [("None", "failed"), ("False", "passed"), ("'no'", "failed")])
def test_a_hook_has_the_last_word_on_a_comparison(pytester: pytest.Pytester, answer: str, outcome: str):
    pytester.makeconftest(DRIFTED.format(answer=answer))
    validate = [MODEL, "--lens-validate", "--lens-report=out"]
    pytester.runpytest_inprocess(*validate, "--lens-update=new")
    result = pytester.runpytest_inprocess(*validate)
    result.assert_outcomes(**{outcome: 1})
    if answer == "False":
        (model,) = report_of(pytester)["models"]
        assert model["comparison"]["notes"][-1] == "a hook pytest_lens_compare says that it does not fail"
    if answer == "'no'":
        result.stdout.fnmatch_lines(["pytest_lens_compare: expected True if *, got 'no' (str)"])


def test_what_is_known_of_a_model_outlives_a_hook_that_raises(pytester: pytest.Pytester):
    pytester.makeconftest("def pytest_lens_report_notes(config, report):\n    return 1")
    pytester.runpytest_inprocess(MODEL, "--lens-report=out").assert_outcomes(failed=1)
    (model,) = report_of(pytester)["models"]
    assert model["outcome"] == "failed"
    assert model["history"]["num_operations"] == 1


UNDRAWN = """
import pytest_torchlens.report as run

def pytest_configure():
    run.save_drawing = full

def full(report, folder):
    raise OSError("the disk is full")

def pytest_unconfigure():
    run.save_drawing = save_drawing

save_drawing = run.save_drawing
"""


def test_the_last_word_on_a_comparison_excuses_no_error(pytester: pytest.Pytester):
    pytester.makeconftest(DRIFTED.format(answer="False"))
    pytester.runpytest_inprocess(MODEL, "--lens-validate", "--lens-update=new")
    pytester.syspathinsert()
    pytester.makepyfile(undrawn=UNDRAWN)
    result = pytester.runpytest_inprocess(MODEL, "--lens-validate", "--lens-report=out", "-p", "undrawn")
    result.assert_outcomes(failed=1)
    (model,) = report_of(pytester)["models"]
    assert model["stage"] == "draw"
    assert model["error"]["message"] == "the disk is full"


UNCLOSED = """
from types import SimpleNamespace

from pytest_torchlens.run import IsolatedResult
from pytest_torchlens.run import run_case

def close():
    raise OSError("it stays open")

def pytest_lens_make_runner(config, options, limits):
    return SimpleNamespace(run=lambda case, progress: IsolatedResult(run_case(case, options).report), close=close)
"""


def test_a_runner_that_cannot_be_closed_leaves_no_reports_behind(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(pytester.mkdir("tmp")))
    pytester.makeconftest(UNCLOSED)
    result = pytester.runpytest_inprocess(MODEL, "-p", "no:cacheprovider")
    result.stderr.fnmatch_lines(["*it stays open"])
    assert not list((pytester.path / "tmp").glob("*lens*"))


def test_a_runner_runs_all_models(pytester: pytest.Pytester):
    pytester.makeconftest(
        """
from pytest_torchlens.run import IsolatedResult
from pytest_torchlens.run import run_case

class Elsewhere:
    def __init__(self, options):
        self.options = options
    def run(self, case, progress):
        return IsolatedResult(run_case(case, self.options, progress).report, output="ran elsewhere")
    def close(self):
        print("closed")

def pytest_lens_make_runner(config, options, limits):
    assert limits.seconds
    return Elsewhere(options)
"""
    )
    result = pytester.runpytest_inprocess("--lens-zoo=tiny:linear,mlp,raises", "--lens-validate", "-s")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*ran elsewhere*", "closed"])


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("environment(config): return 1", "*pytest_lens_environment: expected a mapping of names to text, got 1 (int)"),
        ("environment(config): return {'a': 1}", "*pytest_lens_environment: expected *, got {'a': 1} (dict)"),
        ("report_notes(config): return 1", "*pytest_lens_report_notes: expected text, or a list of text, got 1 (int)"),
        ("compare(confg): return 1", "*Argument(s) {'confg'} are declared in the hookimpl but *"),
    ],
)
def test_wrong_answers_are_told(pytester: pytest.Pytester, hook: str, message: str):
    pytester.makeconftest(f"def pytest_lens_{hook}")
    result = pytester.runpytest_inprocess(MODEL)
    assert result.ret != 0
    (result.stderr if "environment" in hook or "confg" in hook else result.stdout).fnmatch_lines([message])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_the_page_on_hooks_has_an_example_that_runs_and_names_each(pytester: pytest.Pytester):
    from pytest_torchlens.plugin import hookspecs

    page = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
    assert all(f"`{name}(" in page for name in vars(hookspecs) if name.startswith("pytest_lens_"))
    pytester.makeconftest(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0])
    pytester.runpytest_inprocess(MODEL, "--lens-report=out").assert_outcomes(passed=1)
    assert report_of(pytester)["environment"]["settings"]["host"]


def test_each_hook_says_what_it_is_for_with_an_example():
    from pytest_torchlens.plugin import hookspecs

    specs = [spec for name, spec in vars(hookspecs).items() if name.startswith("pytest_lens_")]
    assert len(specs) == 8
    for spec in specs:
        assert all(part in spec.__doc__ for part in ("Called ", "Parameters\n", "Returns\n", "Examples\n")) or (
            spec.__name__ == "pytest_lens_configure_model" and "Examples" in spec.__doc__
        )
