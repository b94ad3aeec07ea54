"""What a model does to the process that runs it, and what it starts beside it, costs that model only."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import Stage
from pytest_torchlens.records import from_json

pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork here")

MODELS = """
import json, os, sys, time
from torch import nn

class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, x):
        return self.function(x)

def forks(at_end):
    pid = os.fork()
    if pid == 0:
        at_end()
    return pid
def status(at_end):
    return os.waitstatus_to_exitcode(os.waitpid(forks(at_end), 0)[1])
def raises():
    raise ValueError("in the fork")
def sleeps():
    while True:
        time.sleep(1)
def leaves_a_sleeper():
    pid = forks(sleeps)
    with open("sleepers", "a") as file:
        file.write(f"{pid} {os.getpid()}\\n")

def exits(x):
    assert status(lambda: sys.exit(3)) == 3
    return x + 1
def exits_with_words(x):
    assert status(lambda: sys.exit("words")) == 1
    return x + 1
def throws(x):
    assert status(raises) == 1
    return x + 1
def goes_on(x):
    pid = forks(lambda: None)
    assert pid == 0 or os.waitpid(pid, 0)[1] == 0
    return x + 1
def leaves(x):
    leaves_a_sleeper()
    return x + 1
def crashes(x):
    leaves_a_sleeper()
    os._exit(13)
def hangs(x):
    leaves_a_sleeper()
    sleeps()
def reads(x):
    input()
def scribbles(x, text):
    for number in range(3, 256):
        try:
            os.write(number, text)
        except OSError:
            pass
    sleeps()
def writes_bytes(x):
    scribbles(x, b"garbage\\xff\\n")
def writes_json(x):
    scribbles(x, b"[5]\\n")
def stops_the_worker(x):
    json.loads = lambda text: sleeps()
    return x + 1
def z_last(x):
    return x + 1

def zoo():
    functions = (exits, exits_with_words, throws, goes_on, leaves, crashes, hangs, reads)
    functions += (writes_bytes, writes_json, stops_the_worker, z_last)
    return {f.__name__: lambda f=f: Calls(f) for f in functions}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults: {input: {shape: [2, 4]}}
rules: [{match: z_last, timeout: 20}]
"""


@pytest.fixture
def zoo(pytester: pytest.Pytester) -> None:
    (pytester.path / "models.py").write_text(MODELS, encoding="utf-8")
    (pytester.path / "z.yaml").write_text(ZOO, encoding="utf-8")


def errors(pytester: pytest.Pytester) -> dict[str, ErrorRecord]:
    text = (pytester.path / "out" / "report.json").read_text(encoding="utf-8")
    return {model.name: model.error for model in from_json(text, RunReport).models if model.error}


def is_alive(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE  # which somebody has yet to wait for
    except psutil.NoSuchProcess:
        return False


def are_gone(sleepers: Path) -> bool:
    """Whether the processes whose numbers stand in a file have ended, or do so soon."""
    numbers = [int(number) for number in sleepers.read_text().split()]
    assert numbers
    for _ in range(600):
        if not any(map(is_alive, numbers)):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("where", ["--lens-isolate", "--lens-no-isolate"])
def test_a_fork_ends_where_it_leaves_the_model(pytester: pytest.Pytester, zoo, where: str):
    names = ("exits", "exits_with_words", "throws", "goes_on", "z_last")
    result = pytester.runpytest_subprocess(*(f"z.yaml::{name}" for name in names), where)
    result.assert_outcomes(passed=5)
    assert len([line for line in result.outlines if "5 passed" in line]) == 1


def test_no_fork_outlives_the_run(pytester: pytest.Pytester, zoo):
    result = pytester.runpytest_inprocess(
        "z.yaml::leaves", "z.yaml::crashes", "z.yaml::z_last", "--lens-isolate", "--lens-report=out"
    )
    result.assert_outcomes(passed=2, failed=1)
    assert errors(pytester)["crashes"].message == "its process ended itself with status 13"
    assert are_gone(pytester.path / "sleepers")


@pytest.mark.slow
def test_no_fork_outlives_pytest(pytester: pytest.Pytester, zoo):
    sleepers = pytester.path / "sleepers"
    command = [sys.executable, "-m", "pytest", "z.yaml::hangs", "--lens-isolate", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.DEVNULL) as run:
        while run.poll() is None and not (sleepers.exists() and sleepers.read_text().endswith("\n")):
            time.sleep(0.1)
        run.kill()
    assert are_gone(sleepers)


def test_what_is_written_to_the_workers_pipe_costs_one_model(pytester: pytest.Pytester, zoo):
    names = ("writes_bytes", "writes_json", "z_last")
    result = pytester.runpytest_inprocess(*(f"z.yaml::{name}" for name in names), "--lens-isolate", "--lens-report=out")
    result.assert_outcomes(passed=1, failed=2)
    found = errors(pytester)
    assert {(error.type, error.stage) for error in found.values()} == {("StrayOutput", Stage.FORWARD)}
    pipe = "it wrote to the pipe by which its process answers (file descriptor 199)"
    assert found["writes_bytes"].message == rf"{pipe}: 'garbage\\xff\n'"
    assert found["writes_json"].message == rf"{pipe}: '[5]\n'"


def test_a_model_that_reads_finds_nothing(pytester: pytest.Pytester, zoo):
    pytester.runpytest_inprocess("z.yaml::reads", "--lens-isolate", "--lens-report=out").assert_outcomes(failed=1)
    assert errors(pytester)["reads"].type == "EOFError"


@pytest.mark.slow
def test_a_model_that_its_worker_never_begins_is_run_by_a_new_one(pytester: pytest.Pytester, zoo):
    result = pytester.runpytest_inprocess(
        "z.yaml::stops_the_worker", "z.yaml::z_last", "--lens-isolate", "--lens-report=out"
    )
    result.assert_outcomes(passed=2)
