"""Times and sizes against the baseline; no test waits for one pass to be slower: what was kept is doctored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_torchlens.cli import main

MODELS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, twice=False):
        super().__init__()
        self.twice = twice
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        x = self.head(x)
        return self.head(x) if self.twice else x


def zoo():
    return {"a": Net, "b": Net}
"""
ZOO = 'provider: "python:models.py:zoo"\ndefaults:\n  input: {shape: [2, 4]}\n'
INSTANT, ENDLESS = 1e-12, 1e6
TEST = """
import pytest, torch


@pytest.mark.lens(fail_on={fail_on!r})
def test_net(lens_trace, lens_check):
    torch.manual_seed(0)
    lens_check(lens_trace(torch.nn.Linear(2, 2), torch.ones(1, 2)))
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> Path:
    folder = pytester.mkdir("zoo")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    write_zoo(folder)
    return folder


def write_zoo(folder: Path, rules: str = "") -> None:
    (folder / "net.yaml").write_text(ZOO + (f"rules: [{rules}]\n" if rules else ""), encoding="utf-8")


def validate(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("zoo/net.yaml", "--lens-validate", "--lens-parts=replay", *arguments)


def took(pytester: pytest.Pytester, seconds: float, machine: str = "") -> None:
    """Let what is kept say that the baselines' passes took so long."""
    files = [*(pytester.path / ".lens" / "times").rglob("*.json")]
    assert files
    for file in files:
        times = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**times, "baseline": seconds, "machine": machine or times["machine"]}))


def test_a_slower_model_is_told_where_time_is_asked_for(pytester: pytest.Pytester, project: Path):
    result = validate(pytester, "--lens-update=new", "--lens-fail-on=time:+20%")
    result.assert_outcomes(passed=2)
    took(pytester, INSTANT)
    result = validate(pytester, "--lens-fail-on=time:+20%")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "net:a: slower; all 3 operations compute the same",
            "*the model: slower: the fastest pass took 1e-09 ms and takes * ms on this machine (+* %)",
            "*to accept: pytest-lens accept net/a",
            "baselines: 2 slower",
        ]
    )
    validate(pytester).stdout.fnmatch_lines(["baselines: 2 identical"])
    took(pytester, ENDLESS)
    validate(pytester, "--lens-fail-on=time:+20%").assert_outcomes(passed=2)


def test_a_zoo_file_may_ask_for_one_model(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    took(pytester, INSTANT)
    write_zoo(project, '{match: a, fail_on: "time:+20%"}')
    validate(pytester).assert_outcomes(passed=1, failed=1)
    validate(pytester, "--lens-isolate").assert_outcomes(passed=1, failed=1)
    write_zoo(project, '{match: a, fail_on: "tim:+20%"}')
    validate(pytester).stderr.fnmatch_lines(["*expected a condition, got 'tim:+20%'; did you mean 'time:+10%'?*"])


def test_accepting_makes_the_last_time_that_of_the_baseline(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    took(pytester, INSTANT)
    validate(pytester, "--lens-fail-on=time:+20%").assert_outcomes(failed=2)
    assert main(["accept", "net/*", "--root", str(pytester.path)]) == 0
    validate(pytester, "--lens-fail-on=time:+100000000%").assert_outcomes(passed=2)


@pytest.mark.parametrize("how", ["first", "elsewhere"])
def test_without_times_of_this_machine_nothing_fails_and_that_is_said(
    how: str, pytester: pytest.Pytester, project: Path
):
    validate(pytester, "--lens-update=new")
    if how == "elsewhere":
        took(pytester, INSTANT, machine="another")
    for file in (pytester.path / ".lens" / "times").rglob("*.json") if how == "first" else ():
        file.unlink()
    result = validate(pytester, "--lens-fail-on=time:+20%")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["times not compared: no earlier time from this machine; this run's time was stored"])
    took(pytester, ENDLESS)
    assert "times were not" not in validate(pytester, "--lens-fail-on=time:+20%").stdout.str()


def test_what_is_committed_has_sizes_and_proof_and_no_time(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    file = pytester.path / "lens_baselines" / "net" / "a.json"
    text = file.read_text(encoding="utf-8")
    stored = json.loads(text)
    assert stored["totals"] == {"flops": 64, "operations": 1, "parameters": 20, "peak_bytes": 32}
    assert [block["proof"] for block in stored["measured"].values()] == [{"replay": "passed"}]
    took(pytester, INSTANT)
    file.unlink()
    validate(pytester, "--lens-update=new")
    assert file.read_text(encoding="utf-8") == text


def test_a_larger_model_fails_where_its_cost_is_named(pytester: pytest.Pytester, project: Path):
    validate(pytester, "--lens-update=new")
    write_zoo(project, "{match: a, kwargs: {twice: true}}")
    result = validate(pytester, "--lens-fail-on=none")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*larger: net:a, *"])
    result = validate(pytester, "--lens-fail-on=none,flops:+50%")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*the model: larger: flops 64 → 128 (+100 %)"])
    validate(pytester, "--lens-fail-on=none,flops:+100%").assert_outcomes(passed=2)


def test_lens_check_compares_times_where_the_marker_asks(pytester: pytest.Pytester):
    pytester.makepyfile(test_it=TEST.format(fail_on="time:+20%"))
    pytester.runpytest_inprocess("--lens-validate", "--lens-update=new").assert_outcomes(passed=1)
    took(pytester, INSTANT)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the model: slower: the fastest pass took 1e-09 ms and takes * ms*"])
    pytester.makepyfile(test_it=TEST.format(fail_on="structure"))
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
