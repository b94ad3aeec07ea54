"""Each mode of each benchmark does what it says, on a tiny model."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import capture
from benchmarks import grouping
from benchmarks import load
from benchmarks import recorder
from benchmarks import suites
from benchmarks import validate
from benchmarks import zoo
from benchmarks.child import MEASURES
from benchmarks.modes import MODES
from benchmarks.modes import OURS
from benchmarks.modes import PEERS
from benchmarks.modes import WITHOUT
from benchmarks.modes import UnusedError
from benchmarks.modes import left_out
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads import build
from pytest_torchlens.report import page_path
from pytest_torchlens.report import save_drawing
from pytest_torchlens.report import write_site
from tests.report import samples


class Tiny(nn.Module):
    """A module, and an operation that draws random numbers: it has something of all that modes leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(self.inner(x), 0.1, train=True) + 1


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)


@pytest.fixture
def tiny_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the workload "tiny", and measure in this process what is otherwise measured in a new one."""

    def measured(measure: str, **request: Any) -> dict[str, Any]:
        with torch.no_grad():
            return json.loads(json.dumps(MEASURES[measure](**request)))

    monkeypatch.setitem(WORKLOADS, "tiny", lambda: (Tiny(), torch.rand(2, 4)))
    monkeypatch.setattr(capture, "run_child", measured)
    monkeypatch.setattr(validate, "run_child", measured)


def command(monkeypatch: pytest.MonkeyPatch, main: Any, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["python -m benchmarks", *arguments])
    return main()


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_runs(mode: str) -> None:
    if mode in PEERS:
        pytest.importorskip("torchlens")
    with torch.no_grad():
        MODES[mode](Tiny(), torch.rand(2, 4))


def test_what_nothing_calls_cannot_be_left_out() -> None:
    with pytest.raises(UnusedError, match=r"Tiny\.forward"), left_out(Tiny, "forward", lambda *_: None):
        pass


def test_a_name_that_moved_is_an_error() -> None:
    with pytest.raises(AttributeError), left_out(Tiny, "moved", lambda *_: None):
        pass


@pytest.mark.usefixtures("tiny_workload")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "numbers.json"
    command(monkeypatch, capture.main, "--workload", "tiny", "--rounds", "1", "--no-peers", "--json", str(file))
    found = json.loads(file.read_text())["results"]["tiny"]
    assert found["errors"] == {}
    assert found["runs"] == dict.fromkeys([*OURS, *WITHOUT], 1)
    assert set(found["peak_mib"]) == set(OURS)
    assert capsys.readouterr().out.count("\n| tiny ") == 3


@pytest.mark.usefixtures("tiny_workload")
def test_capture_of_time_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command(monkeypatch, capture.main, *"--workload tiny --rounds 1 --no-memory --no-peers --without validated".split())
    printed = capsys.readouterr().out
    assert printed.count("\n| tiny ") == 2
    assert "validated" not in printed


@pytest.mark.usefixtures("tiny_workload")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "numbers.json"
    arguments = f"--timed tiny --measured tiny --rounds 1 --no-peers --json {file}".split()
    assert command(monkeypatch, validate.main, *arguments) == 1  # a tiny model's overhead exceeds the bounds
    found = json.loads(file.read_text())
    storage = found["memory"]["tiny"]["storage_mib"]
    assert storage["validated"] > storage["plain"] > 0
    assert found["memory"]["tiny"]["largest_mib"] > 0
    assert found["time"]["tiny"]["errors"] == {}
    assert capsys.readouterr().out.count("\n| tiny ") == 2


def test_a_measurement_in_a_new_process() -> None:
    found = capture.run_child(measure="time", workload="1,000 draws", modes=["plain"], rounds=1, budget=1.0)
    assert found["wall_ms"]["plain"] > 0


@pytest.mark.parametrize("workload", ["chain of 2,000", "1,000 draws"])
def test_a_workload_is_the_same_each_time(workload: str) -> None:
    assert torch.equal(build(workload)[1], build(workload)[1])


def test_grouping(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(grouping, "SIZES", (20,))
    grouping.main()
    printed = capsys.readouterr().out
    assert all(f"\n| {graph} " in printed for graph in grouping.WORKLOADS)


def test_load(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(load, "_RUNS", 1)
    load.main()
    assert "the plugin" in capsys.readouterr().out


def test_recorder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision")
    pytest.importorskip("PIL")
    command(monkeypatch, recorder.main, "squeezenet1_1", "--steps", "1", "--batch", "1")
    printed = capsys.readouterr().out
    assert all(f"| squeezenet1_1 | {case} |" in printed for case in recorder.CASES)


def test_recorder_of_one_case(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision")
    command(monkeypatch, recorder.main, *"squeezenet1_1 --steps 1 --batch 1 --case 1".split())
    assert capsys.readouterr().out.count("| squeezenet1_1 |") == 1


@pytest.mark.parametrize("arguments", [[], ["--cpu"]], ids=["wall", "cpu"])
def test_times(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision")
    from benchmarks import times

    monkeypatch.setattr(times, "PASSES", 1)
    command(monkeypatch, times.main, *arguments, "squeezenet1_1")
    assert "\nsqueezenet1_1 " in capsys.readouterr().out


def test_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("playwright.sync_api")
    if shutil.which("chromium") is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    from benchmarks import page

    model = save_drawing(samples.passed(), tmp_path)
    write_site(samples.run(model), [model], tmp_path)
    page.main(tmp_path / page_path(model))
    printed = capsys.readouterr().out
    assert "the drawing of all operations" in printed
    assert "usable after" in printed


SUITE = """
from pathlib import Path

import torch
from torch import nn


def test_same():
    nn.Linear(2, 2)(torch.rand(1, 2))


def test_differs(request):
    assert not request.config.pluginmanager.hasplugin("lens-autotrace")


def test_flaky():
    runs = Path(__file__).with_name("runs")
    runs.write_text(runs.read_text() + "." if runs.exists() else ".")
    assert len(runs.read_text()) == 1


def test_left_out():
    torch.jit.script(nn.Linear(2, 2))(torch.rand(1, 2))
"""


def test_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    arguments = ["--folder", str(tmp_path), "--order", "-p no:randomly", "--json", str(tmp_path / "runs.json")]
    assert command(monkeypatch, suites.main, *arguments, "--", "-p", "no:cacheprovider", "test_suite.py") == 1
    printed = capsys.readouterr().out
    assert printed.count("DIFFERS") == 1
    assert "DIFFERS test_suite::test_differs: passed, then failure" in printed
    assert "flaky test_suite::test_flaky" in printed
    assert "left out: 1: it is compiled or scripted" in printed
    assert "| 2 | 1 proven, 1 left out |" in " ".join(printed.split())
    assert len(json.loads((tmp_path / "runs.json").read_text())[0]["validated"]["outcomes"]) == 4


COUNTS = "lens: 1,003 outermost module calls in 2 tests: 1,000 proven, 1 like one before, 2 left out\n"
LEFT_OUT = "left out: 2 calls: it raised (first in test_a.py::test_b)\n"
FAILED = "lens: Net: validation failed in replay: linear_1_1 differs\n"


@pytest.mark.parametrize(
    ("printed", "outcome", "problem"),
    [
        (COUNTS + LEFT_OUT, "passed", ""),
        (COUNTS + LEFT_OUT, "failure", "test: passed, then failure"),
        (COUNTS.replace("1,003", "1,004") + LEFT_OUT, "passed", "1004 calls, but"),
        (COUNTS + LEFT_OUT.replace("2", "1"), "passed", "2 calls left out, but"),
        (COUNTS + LEFT_OUT + FAILED, "passed", FAILED.strip()),
    ],
)
def test_what_must_not_be_in_a_run_of_a_suite(printed: str, outcome: str, problem: str) -> None:
    plain = suites.Run({"test": "passed"}, "", 1.0)
    validated = suites.Run({"test": outcome}, printed, 1.0)
    problems = suites.Result("", plain, plain, validated).problems()
    assert len(problems) == bool(problem)
    assert problem in "".join(problems)


def test_a_suite_that_does_not_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="ended with 5"):
        command(monkeypatch, suites.main, "--folder", str(tmp_path), "--order", "-p no:cacheprovider")


ZOO = 'provider: "python:models.py:zoo"\ndefaults:\n  input: {shape: [2, 4]}\n'
MODELS = """
from torch import nn

def zoo():
    return {"one": lambda: nn.Linear(4, 4), "two": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())}
"""


def test_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "net.yaml").write_text(ZOO, encoding="utf-8")
    command(monkeypatch, zoo.main, "--", *(f"{tmp_path / 'net.yaml'}::{name}" for name in ("one", "two")))
    printed = capsys.readouterr().out
    assert "each further one" in printed
    assert "2 passed" in printed
