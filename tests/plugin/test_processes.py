"""What a model does to the process that runs it, and what it starts beside it, costs that model only."""

from __future__ import annotations

import os
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
from pytest_torchlens.run.worker import Isolation
from pytest_torchlens.run.worker import JobLimits
from pytest_torchlens.run.worker import NoAnswerError
from pytest_torchlens.run.worker import Worker
from tests.plugin.calls import CALLS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

MODELS = (
    CALLS
    + """
import json, os, sys, time

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
    if not os.path.exists("sleepers"):  # once: it is called many times
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
)
ZOO = """
provider: "python:models.py:zoo"
defaults: {input: {shape: [2, 4]}}
"""


@pytest.fixture
def zoo(pytester: pytest.Pytester) -> None:
    (pytester.path / "models.py").write_text(MODELS, encoding="utf-8")
    (pytester.path / "z.yaml").write_text(ZOO, encoding="utf-8")


def errors(pytester: pytest.Pytester) -> dict[str, ErrorRecord]:
    text = (pytester.path / "out" / "report.json").read_text(encoding="utf-8")
    return {model.name: model.error for model in from_json(text, RunReport).models if model.error}


def is_alive(number: int, until: float) -> bool:
    """Whether a process that began before a time is there; a later one has only got its number."""
    try:
        process = psutil.Process(number)
        return process.create_time() < until and process.status() != psutil.STATUS_ZOMBIE  # not waited for yet
    except psutil.NoSuchProcess:
        return False


def are_gone(sleepers: Path) -> bool:
    """Whether the processes whose numbers stand in a file have ended, or do so soon."""
    numbers = [int(number) for number in sleepers.read_text().split()]
    assert numbers
    until = sleepers.stat().st_mtime + 2  # seconds by which the two clocks may differ
    for _ in range(600):
        if not any(is_alive(number, until) for number in numbers):
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
        try:
            for _ in range(3000):
                if run.poll() is not None or (sleepers.exists() and sleepers.read_text().endswith("\n")):
                    break
                time.sleep(0.1)
        finally:
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


def test_a_model_that_its_worker_never_begins_is_run_by_a_new_one(
    pytester: pytest.Pytester, zoo, monkeypatch: pytest.MonkeyPatch
):
    seconds = iter([300, 0.1, 300])  # of the first model, of the second in the stopped worker, and in the new one
    monkeypatch.setattr(Isolation, "_limits_of", lambda self, case: JobLimits(next(seconds), self._limits.memory))
    result = pytester.runpytest_inprocess(
        "z.yaml::stops_the_worker", "z.yaml::z_last", "--lens-isolate", "--lens-report=out"
    )
    result.assert_outcomes(passed=2)


PROVIDER = """
import os, sys
from torch import nn
def forked():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return pid == 0
def zoo():
    if forked():
        sys.exit(0)
    if forked():
        raise ValueError
    if forked():
        return {"a": nn.ReLU}
    names = ("a", "b", "c")
    return {name: lambda number=number: nn.Linear(4, number) for number, name in enumerate(names, 1)}
"""


@pytest.mark.parametrize("where", ["--lens-isolate", "--lens-no-isolate"])
def test_a_fork_of_the_provider_answers_for_no_model(pytester: pytest.Pytester, where: str):
    (pytester.path / "models.py").write_text(PROVIDER, encoding="utf-8")
    (pytester.path / "z.yaml").write_text(ZOO, encoding="utf-8")
    result = pytester.runpytest_subprocess("z.yaml", where)
    result.assert_outcomes(passed=3)
    assert len([line for line in result.outlines if "3 passed" in line]) == 1
    parameters = {words[0]: words[1] for words in map(str.split, result.outlines) if words and words[0][:2] == "z:"}
    assert parameters == {"z:a": "5", "z:b": "10", "z:c": "15"}


LINES = {
    "stage": '{"stage": []}',
    "depth": "[" * 100_000,
    "list": "[5]",
    "nothing": "{}",
    "answer": '{"answer": 5, "job": 1}',
    "former": '{"answer": {"report": {}}, "job": 0}',
    "former-stage": '{"stage": "forward", "job": 0}',
    "nameless": '{"answer": {"report": {}}}',
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_that_is_no_message_about_the_present_model_is_stray(line: str):
    program = "import sys; print(sys.argv[1], flush=True); sys.stdin.read()"
    worker = Worker([sys.executable, "-c", program, line])
    try:
        with pytest.raises(NoAnswerError, match="it wrote to the pipe") as caught:
            worker.run({"zoo": "z.yaml"}, JobLimits(300, 2**40), lambda stage: None)
    finally:
        worker.close()
    assert caught.value.kind == "StrayOutput"
