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

from benchmarks import __main__ as everything
from benchmarks import empty_tests
from benchmarks import grouping
from benchmarks import load
from benchmarks import recorder
from benchmarks import suites
from benchmarks import sweeps
from benchmarks import workloads
from benchmarks import zoo
from benchmarks.child import MEASURES
from benchmarks.child import run_child
from benchmarks.figures import Figure
from benchmarks.figures import Figures
from benchmarks.figures import slowdowns
from benchmarks.modes import MODES
from benchmarks.modes import OURS
from benchmarks.modes import PEERS
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
def tiny_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measure a tiny model, in this process, and two empty tests; return the file of figures."""

    def measured(measure: str, **request: Any) -> dict[str, Any]:
        with torch.no_grad():
            return json.loads(json.dumps(MEASURES[measure](**request)))

    tiny = {"tiny": lambda: (Tiny(), torch.rand(2, 4))}
    monkeypatch.setitem(workloads.WORKLOADS, "tiny", tiny["tiny"])
    for name in ("WORKLOADS", "FAMILIES", "LARGE"):
        monkeypatch.setattr(everything, name, tiny)
    monkeypatch.setattr(everything, "run_child", measured)
    monkeypatch.setattr(everything, "peers", list)
    monkeypatch.setattr(everything, "ROUNDS", 2)
    monkeypatch.setattr(everything, "FILE", tmp_path / "figures.csv")
    monkeypatch.setattr(empty_tests, "TESTS", 2)
    monkeypatch.setattr(empty_tests, "FILES", 1)
    return tmp_path / "figures.csv"


def command(monkeypatch: pytest.MonkeyPatch, main: Any, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["python -m benchmarks", *arguments])
    return main()


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_runs(mode: str) -> None:
    if mode in PEERS:
        pytest.importorskip("torchlens")
    with torch.no_grad():
        MODES[mode](Tiny(), torch.rand(2, 4))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_everything(tiny_workloads: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, everything.main, "--save") == 0
    printed = capsys.readouterr().out
    assert printed.count("\n| tiny ") == 3
    assert "The package torchlens is not installed" in printed
    tables = Figures.load(tiny_workloads).tables
    assert [*tables] == [*everything.TABLES]
    assert {*tables["CPU time"]["tiny"]} == {"plain, ms", *OURS} - {"plain"}
    assert all(figure.low > 0 for key, figure in Figures.load(tiny_workloads).cells() if "resident" not in key[2])
    assert tables["families of timm"]["median"] == tables["families of timm"]["tiny"]
    assert [len(row) for row in tables["empty tests"].values()] == [2, 2]


def test_a_slowdown_is_shown(
    tiny_workloads: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = iter([[1.0, 1.1], [2.0, 2.1]])
    monkeypatch.setitem(everything.TABLES, "memory", lambda: {"tiny": {"validated": Figure.of(next(figures))}})
    everything.Figures("before", {"memory": everything.TABLES["memory"]()}).save(tiny_workloads)
    assert command(monkeypatch, everything.main, "--only", "memory") == 1
    assert "memory, tiny, validated: 1.050 (1.025 to 1.075), now 2.05 (2.02 to 2.08): 1.95 times" in (
        capsys.readouterr().out
    )


def _figures(column: str, *values: float) -> Figures:
    return Figures("", {"table": {"row": {column: Figure.of([*values])}}})


@pytest.mark.parametrize(
    ("column", "before", "now", "found"),
    [
        ("validated", [5.0, 5.1, 5.2], [5.6, 5.7, 5.8], [False]),
        ("validated", [5.0, 5.1, 5.2], [5.4, 5.5, 5.6], []),  # less than a tenth
        ("validated", [4.0, 5.0, 6.5], [4.5, 5.6, 7.0], [True]),  # the runs of one release differ as much
        ("validated", [5.0], [4.0], []),
        ("plain, ms", [5.0], [9.0], []),
        ("torchlens validate", [5.0], [9.0], []),
    ],
)
def test_what_counts_as_a_slowdown(column: str, before: list[float], now: list[float], found: list[bool]) -> None:
    slower = slowdowns(_figures(column, *before), _figures(column, *now))
    assert [one.is_noise for one in slower] == found


def test_a_figure_without_a_former_one_is_not_compared() -> None:
    assert slowdowns(_figures("other", 1.0), _figures("validated", 9.0)) == []


def test_figures_are_read_as_they_were_saved(tmp_path: Path) -> None:
    figures = _figures("a, b", 1.0, 2.0, 4.0)
    figures.environment = "2026-11-30: a machine, one thread"
    figures.save(tmp_path / "figures.csv")
    assert Figures.load(tmp_path / "figures.csv") == figures


def fails(model: nn.Module, x: torch.Tensor) -> None:
    raise ValueError(x.shape)


def test_a_mode_that_fails_is_told_and_left_out(tiny_workloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODES, "recorded", fails)
    found = MEASURES["time"](["tiny"], ["plain", "recorded", "all kept"], 2, 9.0)["tiny"]
    assert [*found["ratios"]] == ["all kept"]
    assert found["errors"] == {"recorded": "ValueError: torch.Size([1, 3, 8, 8])"}


@pytest.mark.parametrize(("budget", "turns"), [(0.0, 1), (9.0, 3)])
def test_a_mode_without_budget_is_measured_once(tiny_workloads: Path, budget: float, turns: int) -> None:
    found = MEASURES["time"](["tiny"], ["plain", "recorded"], 3, budget)["tiny"]
    assert len(found["plain_ms"]) == len(found["ratios"]["recorded"]) == turns


def test_a_measurement_in_a_new_process() -> None:
    found = run_child(measure="time", workloads=["chain of 2,000"], modes=["plain"], rounds=1, budget=1.0)
    assert found["chain of 2,000"]["plain_ms"][0] > 0


def test_a_workload_is_the_same_each_time() -> None:
    assert torch.equal(build("chain of 2,000")[1], build("chain of 2,000")[1])


def test_grouping(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(grouping, "SIZES", (20,))
    grouping.main()
    printed = capsys.readouterr().out
    assert all(f"\n| {graph} " in printed for graph in grouping.WORKLOADS)


def test_sweeps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten())
    monkeypatch.setattr(sweeps, "EDITS", 4)
    monkeypatch.setattr(sweeps, "PASSES", 1)
    monkeypatch.setattr(sweeps, "model", lambda: (net, torch.rand(1, 1, 5, 5), "0"))
    sweeps.main()
    printed = capsys.readouterr().out
    assert printed.count("\n| spread over it ") == printed.count("\n| at its first operation ") == 2


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "net.yaml").write_text(ZOO, encoding="utf-8")
    command(monkeypatch, zoo.main, "--", *(f"{tmp_path / 'net.yaml'}::{name}" for name in ("one", "two")))
    printed = capsys.readouterr().out
    assert "each further one" in printed
    assert "2 passed" in printed
