"""Each model in a worker process: what it does there costs that model only."""

from __future__ import annotations

import pytest

from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import Stage
from pytest_torchlens.records import from_json
from tests.plugin.calls import CALLS

MODELS = (
    CALLS
    + """
import ctypes, os, time
import pytest, torch

def a_process(x):
    print("in process", os.getpid())
    return x * 2
def b_same(x):
    print("in process", os.getpid())
    return x * 2
def raises(x):
    raise ValueError("boom in forward")
def skips(x):
    pytest.skip("not on this machine")
def interrupts(x):
    raise KeyboardInterrupt
def leaves(x):
    os._exit(13)
def hangs(x):
    while True:
        time.sleep(0.01)
def hoards(x):
    kept = []
    while True:
        kept.append(torch.ones(10_000_000))
def crashes(x):
    ctypes.string_at(0)
def is_killed(x):
    os.kill(os.getpid(), 9)
def z_last(x):
    return x + 1

def zoo():
    functions = (a_process, b_same, raises, skips, interrupts, leaves, hangs, hoards, crashes, is_killed, z_last)
    return {f.__name__: lambda f=f: Calls(f) for f in functions}
"""
)
ZOO = """
provider: "python:models.py:zoo"
defaults: {input: {shape: [2, 4]}}
rules:
  - {match: hangs, timeout: 0.5}
  - {match: hoards, memory: 900 MiB}
"""


@pytest.fixture
def zoo(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("model_zoo_configs")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "bad.yaml").write_text(ZOO, encoding="utf-8")


def models(pytester: pytest.Pytester) -> dict[str, ModelReport]:
    text = (pytester.path / "out" / "report.json").read_text(encoding="utf-8")
    return {model.name: model for model in from_json(text, RunReport).models}


def errors(found: dict[str, ModelReport]) -> dict[str, tuple[str, Stage, str]]:
    return {name: (m.error.type, m.error.stage, m.error.message) for name, m in found.items() if m.error}


def test_one_worker_runs_all_as_they_would_run_here(pytester: pytest.Pytester, zoo):
    path = pytester.path / "model_zoo_configs" / "bad.yaml"
    path.write_text(ZOO + "  - {match: z_last, xfail: known}\n")
    result = pytester.runpytest_inprocess(
        "--lens-zoo=bad:a_*,b_*,raises,skips,interrupts,z_*",
        "--lens-isolate",
        "--lens-report=out",
        "--lens-graph=graphs,format=dot,direction=down",
        "--lens-validate",
        "-rP",
    )
    result.assert_outcomes(passed=2, failed=3, skipped=1)
    assert len({line for line in result.outlines if line.startswith("in process")}) == 1
    result.stdout.fnmatch_lines(["*models.py*, in raises", "*ValueError: boom in forward", "raised in stage 'forward'"])
    result.stdout.fnmatch_lines(["[[]XPASS(strict)[]] known"])
    found = models(pytester)
    assert found["a_process"].verdict
    assert found["a_process"].history is not None
    assert found["a_process"].graph
    assert found["skips"].outcome is Outcome.SKIPPED
    assert errors(found)["raises"][:2] == ("ValueError", Stage.FORWARD)
    assert errors(found)["interrupts"][:2] == ("KeyboardInterrupt", Stage.FORWARD)
    assert found["interrupts"].stage is Stage.FORWARD
    result.stdout.fnmatch_lines(["*models.py*, in interrupts", "KeyboardInterrupt", "raised in stage 'forward'"])
    assert "rankdir" in (pytester.path / "graphs" / "bad" / "a_process.dot").read_text()


def test_a_process_that_ends_costs_one_model(pytester: pytest.Pytester, zoo):
    result = pytester.runpytest_inprocess("--lens-zoo=bad:leaves,z_last", "--lens-isolate", "--lens-report=out")
    result.assert_outcomes(passed=1, failed=1)
    assert errors(models(pytester)) == {"leaves": ("Crash", Stage.FORWARD, "its process ended itself with status 13")}
    result.stdout.fnmatch_lines(["bad:leaves: Crash in stage 'forward': its process ended itself with status 13"])


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["-n2"]])
def test_limits_and_signals_cost_one_model_each(pytester: pytest.Pytester, zoo, arguments: list[str]):
    result = pytester.runpytest_subprocess(
        "--lens-zoo=bad:hangs,hoards,crashes,is_killed,z_last", "--lens-isolate", "--lens-report=out", *arguments
    )
    result.assert_outcomes(passed=1, failed=4)
    found = errors(models(pytester))
    assert {kind for kind, _, _ in found.values()} == {"TimeLimit", "MemoryLimit", "Crash"}
    kind, stage, message = found["hangs"]
    assert (kind, stage) == ("TimeLimit", Stage.FORWARD)
    assert "took more than the 0.5 s it may, at " in message
    assert message.endswith(" in hangs")
    assert "more than the 0.9 GiB it may have" in found["hoards"][2]
    assert "SIGSEGV" in found["crashes"][2]
    assert found["crashes"][2].endswith(" in crashes")
    assert "SIGKILL (out of memory, most likely)" in found["is_killed"][2]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--lens-timeout=0", "*--lens-timeout: expected a positive number of seconds, got '0'"),
        ("--lens-memory=much", "*--lens-memory: expected an amount of memory such as '8 GiB' or '500 MiB', got 'much'"),
    ],
)
def test_wrong_limits_are_usage_errors(pytester: pytest.Pytester, zoo, option: str, message: str):
    result = pytester.runpytest_inprocess("--lens-zoo=bad:z_last", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_many_models_are_isolated_unasked(pytester: pytest.Pytester):
    folder = pytester.mkdir("model_zoo_configs")
    (folder / "m.py").write_text(
        "import os\nfrom torch import nn\n"
        "class Tells(nn.Module):\n    def forward(self, x):\n        print('in', os.getppid())\n        return x + 1\n"
        "def zoo():\n    return {f'm{i:02}': Tells for i in range(21)}\n"
    )
    (folder / "many.yaml").write_text("provider: 'python:m.py:zoo'\ndefaults: {input: {shape: [1]}}")
    here = __import__("os").getpid()
    many = pytester.runpytest_inprocess("--lens-zoo=many", "-rP")
    assert many.outlines.count(f"in {here}") > 21
    few = pytester.runpytest_inprocess("--lens-zoo=many:m0*", "-rP")
    assert f"in {here}" not in few.outlines
    off = pytester.runpytest_inprocess("--lens-zoo=many", "--lens-no-isolate", "-rP")
    assert f"in {here}" not in off.outlines


COLLECTED = (
    CALLS
    + """
import gc, weakref

ALIVE = []

class Cycle:
    def __init__(self):
        self.own = self

def a_leaves_a_cycle(x):
    ALIVE.append(weakref.ref(Cycle()))
    return x + 1

def b_finds_it_freed(x):
    assert ALIVE[0]() is None
    assert gc.get_freeze_count() > 100_000
    return x + 1

def zoo():
    return {f.__name__: lambda f=f: Calls(f) for f in (a_leaves_a_cycle, b_finds_it_freed)}
"""
)


@pytest.mark.usefixtures("zoo")
def test_between_models_garbage_is_freed_and_libraries_are_frozen(pytester: pytest.Pytester):
    (pytester.path / "model_zoo_configs" / "models.py").write_text(COLLECTED, encoding="utf-8")
    result = pytester.runpytest_inprocess("--lens-zoo=bad", "--lens-validate", "--lens-isolate", "-p", "no:randomly")
    result.assert_outcomes(passed=2)
