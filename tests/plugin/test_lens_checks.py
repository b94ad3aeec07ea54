from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_torchlens.checks.catalog import CHECKS
from pytest_torchlens.cli import main

MODELS = """
import torch
from torch import nn


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def zoo():
    return {"good": lambda: nn.Linear(4, 2), "counting": Counting}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults:
  input: {shape: [2, 4]}
"""
OWN = """
from pytest_torchlens.checks.results import passed

class Own:
    name, sentence, cost = "own", "It holds.", 1

    def run(self, subject):
        return passed("own", compared=len(subject.outputs))

def pytest_lens_checks():
    return Own()
"""


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    folder = pytester.mkdir("zoo")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "net.yaml").write_text(ZOO, encoding="utf-8")
    return folder


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("zoo/net.yaml", *arguments)


def test_a_failed_check_fails_the_model_and_names_operation_and_line(folder: Path, pytester: pytest.Pytester) -> None:
    result = run(pytester, "--lens-checks=repeat")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "net:counting: failed repeat (--lens-checks)",
            "  mul_1_1: the output differs in a second call",
            "      at: *models.py:13, in forward",
            "      what to do: *",
            "      to reproduce: pytest-lens repro zoo/net.yaml::counting --check=repeat",
            "net:counting *FAILED repeat at mul_1_1*1 failed (repeat)",
            "net:good *1 passed",
        ]
    )


def test_results_stand_in_json_table_junit_markdown_and_on_the_page(folder: Path, pytester: pytest.Pytester) -> None:
    options = ("--lens-json=run.json", "--lens-table=t.csv", "--junit-xml=j.xml", "--lens-report-md=r.md")
    run(pytester, "--lens-checks=repeat", "--lens-report=out", *options)
    models = json.loads(Path("run.json").read_text(encoding="utf-8"))["models"]
    assert [model["checks"][0]["status"] for model in models] == ["failed", "passed"]
    assert models[0]["stage"] == "check"
    assert "1 failed (repeat)" in Path("t.csv").read_text(encoding="utf-8")
    assert 'name="lens.check.repeat" value="failed"' in Path("j.xml").read_text(encoding="utf-8")
    assert "check `repeat`: 1 failed, 1 passed" in Path("r.md").read_text(encoding="utf-8")
    page = next(Path("out").rglob("counting*.html")).read_text(encoding="utf-8")
    assert "another way" in page
    assert "differs in a second call" in page
    assert "pytest-lens repro zoo/net.yaml::counting --check=repeat" in page
    assert main(["merge", "out", "--out", "all"]) == 0
    merged = json.loads(Path("all/report.json").read_text(encoding="utf-8"))["models"]
    assert [model["checks"] for model in merged] == [model["checks"] for model in models]


def test_what_the_first_call_of_a_zoo_leaves_is_found(folder: Path, pytester: pytest.Pytester) -> None:
    model = MODELS.replace("Counting", "Keeping").replace("calls = 0", "first = None")
    model = model.replace("calls += 1", "first = x if self.first is None else self.first")
    (folder / "models.py").write_text(model.replace("self.calls", "self.first"), encoding="utf-8")
    result = run(pytester, "--lens-checks=repeat", "-k", "counting")
    result.stdout.fnmatch_lines(["*leaves in the model what a later one reads: attribute 'first'"])


@pytest.mark.parametrize(
    ("checks", "outcomes"),
    [
        ("[repeat]", {"passed": 1, "failed": 1}),
        ("{repeat: {xfail: 'it counts'}}", {"passed": 1, "failed": 1}),  # the good one passes unexpectedly
        ("all", {"passed": 1, "failed": 1}),
        ("null", {"passed": 2}),
    ],
)
def test_a_zoo_file_names_checks(
    checks: str, outcomes: dict[str, int], folder: Path, pytester: pytest.Pytester
) -> None:
    (folder / "net.yaml").write_text(f"{ZOO}  checks: {checks}\n", encoding="utf-8")
    run(pytester).assert_outcomes(**outcomes)


def test_a_rule_changes_the_default_and_the_command_line_wins(folder: Path, pytester: pytest.Pytester) -> None:
    rules = "rules:\n  - {match: counting, checks: {repeat: {xfail: 'it counts'}}}\n"
    (folder / "net.yaml").write_text(f"{ZOO}  checks: [repeat]\n{rules}", encoding="utf-8")
    result = run(pytester)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["net:counting *1 xfailed (repeat)"])
    run(pytester, "--lens-checks=none").stdout.no_fnmatch_line("*xfailed*")
    (folder / "net.yaml").write_text(f"{ZOO}  checks: [repeat]\n{rules.replace(': {repeat:', ': {repeat: off, x:')}")
    run(pytester).stderr.fnmatch_lines(["*net.yaml:7: checks: expected repeat*, got 'x'*"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("repaet", "*--lens-checks: expected repeat*, got 'repaet' (did you mean 'repeat'?)"),
        ("baseline", "*--lens-validate compare with them*"),
        ("none,repeat", "*--lens-checks: 'none' stands alone, got it with repeat*"),
    ],
)
def test_an_unknown_name_is_a_usage_error(text: str, words: str, folder: Path, pytester: pytest.Pytester) -> None:
    result = run(pytester, f"--lens-checks={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([words])


def test_a_wrong_option_in_a_zoo_file_names_its_line(folder: Path, pytester: pytest.Pytester) -> None:
    (folder / "net.yaml").write_text(f"{ZOO}  checks: {{repeat: {{secnds: 3}}}}\n", encoding="utf-8")
    run(pytester).stderr.fnmatch_lines(["*net.yaml:5: checks: repeat: unknown option 'secnds'*"])


def test_a_worker_process_runs_checks(folder: Path, pytester: pytest.Pytester) -> None:
    result = run(pytester, "--lens-checks=repeat", "--lens-isolate")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["  mul_1_1: the output differs in a second call"])


LAYERS = """
from torch import nn


class Twice(nn.Module):
    def forward(self, x):
        return x * 2
"""
WITH_LAYERS = """
from torch import nn

from layers import Twice


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 2), Twice())


def zoo():
    return {"net": Net}
"""


@pytest.mark.slow
def test_a_pickled_model_of_a_zoos_own_files_is_loaded_in_another_process(
    folder: Path, pytester: pytest.Pytester
) -> None:
    (folder / "layers.py").write_text(LAYERS, encoding="utf-8")
    (folder / "models.py").write_text(WITH_LAYERS, encoding="utf-8")
    (folder / "net.yaml").write_text(ZOO + "  checks: {state: {ways: pickle}}\n", encoding="utf-8")
    result = run(pytester, "-v")
    result.stdout.fnmatch_lines(["  check state  passed, 1 output *"])


def test_a_check_of_the_project_runs_beside_ours(folder: Path, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(OWN)
    result = run(pytester, "--lens-checks=own,repeat")
    result.stdout.fnmatch_lines(["net:good *2 passed"])
    run(pytester, "--lens-checks=own", "--lens-isolate").stdout.fnmatch_lines(["*load no conftest.py*"])
    pytester.makeconftest("def pytest_lens_checks():\n    return 'own'\n")
    run(pytester, "--lens-checks=repeat").stderr.fnmatch_lines(["*pytest_lens_checks: expected objects with name*"])


@pytest.mark.parametrize("answer", ["'own'", "Own", "Own(cost=True)", "Own(name='a,b')", "Own(run=None)", "[Own(), 3]"])
def test_what_is_no_check_is_a_usage_error_also_if_tests_alone_are_validated(
    answer: str, pytester: pytest.Pytester
) -> None:
    own = OWN.replace("return Own()", f"return {answer}")
    pytester.makeconftest(
        own.replace("    def run", "    def __init__(self, **other):\n        vars(self).update(other)\n\n    def run")
    )
    pytester.makepyfile("def test_nothing():\n    pass\n")
    result = pytester.runpytest_inprocess("--lens-validate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pytest_lens_checks: expected objects with name, sentence, cost, run, got *"])


DOCS = Path(__file__).parents[2] / "docs" / "checks.md"


def test_the_check_of_the_docs_runs(folder: Path, pytester: pytest.Pytester) -> None:
    code = DOCS.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    pytester.makeconftest(code)
    (folder / "models.py").write_text(MODELS.replace("nn.Linear(4, 2)", "nn.Softmax(-1)"), encoding="utf-8")
    result = run(pytester, "--lens-checks=sums-to-one")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["net:counting: failed sums-to-one (--lens-checks)", "  rows sum to *"])


@pytest.mark.parametrize("name", [check.name for check in CHECKS])
def test_the_docs_say_of_each_check_why_it_breaks_and_what_to_do(name: str) -> None:
    section = DOCS.read_text(encoding="utf-8").partition(f"\n### {name}\n")[2].partition("\n##")[0]
    assert "*Why it breaks*" in section
    assert "github.com" in section
    assert "*What to do*" in section


TEST = """
import pytest, torch
from torch import nn
from models import Counting

def test_good(lens_same):
    (result,) = lens_same(nn.Linear(4, 2), torch.ones(2, 4), checks="repeat")
    assert result.word == "passed"

@pytest.mark.lens(checks={"repeat": {"xfail": "it counts"}})
def test_expected(lens_same):
    (result,) = lens_same(Counting().eval(), [], {"x": torch.ones(2, 4)})
    assert result.word == "xfailed"

def test_counting(lens_same):
    lens_same(Counting().eval(), torch.ones(2, 4), checks=["repeat"])

def test_wrong_name(lens_same):
    lens_same(nn.Linear(4, 2), torch.ones(2, 4), checks="repaet")

def test_wrong_argument(lens_same):
    lens_same(nn.Linear(4, 2), torch.ones(2, 4), check="repeat")

def test_history(lens_same, lens_trace):
    lens_same(lens_trace(nn.Linear(4, 2), torch.ones(2, 4)))

def test_model(lens_check):
    lens_check(nn.Linear(4, 2))

@pytest.mark.parametrize("checks", ["repeat", "rows"])
@pytest.mark.parametrize("build", [lambda: 1 / 0, lambda: None, 3])
def test_build(lens_same, build, checks):
    lens_same(nn.Linear(4, 2).eval(), torch.ones(2, 4), checks=checks, build=build)
"""


def test_lens_same_fails_a_test_whose_model_differs(folder: Path, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(models=MODELS, test_it=TEST)
    result = pytester.runpytest_inprocess("test_it.py", "--junit-xml=j.xml")
    result.assert_outcomes(passed=2, failed=11)
    result.stdout.fnmatch_lines(
        [
            "*NotTheSameError: Counting: failed repeat (--lens-checks)",
            "*mul_1_1: the output differs in a second call",
            "*ValueError: lens_same: checks: expected repeat*(did you mean 'repeat'?)",
            "*TypeError: lens_same: unknown argument 'check'; did you mean 'checks'?",
            "*lens_check compares a history with a baseline",
            "*lens_same(model, x) runs the checks of --lens-checks*",
            "*ValueError: lens_same: build raised ZeroDivisionError: division by zero; expected a function that makes*",
            "*TypeError: lens_same: build: expected a function that makes *; it returned None",
            "*TypeError: lens_same: build: expected a function that makes *, got 3",
        ]
    )
    assert 'name="lens.check.repeat" value="xfailed"' in Path("j.xml").read_text(encoding="utf-8")


def test_the_command_lists_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks"]) == 0
    assert "A second call gives the same output" in capsys.readouterr().out
