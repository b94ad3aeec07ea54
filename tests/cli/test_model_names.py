"""Every command takes a model in each of its spellings, and finds the project's zoos as pytest does."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.cli import main

MODELS = """
import torch
from torch import nn


class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()


def zoo():
    return {"net": lambda: Net(3, 2), "net:v2": lambda: Net(3, 2)}
"""
ZOO = 'provider: "python:models.py:zoo"\ndefaults: {input: {shape: [1, 3]}}\n'
SPELLINGS = ("mine/net", "mine:net", "zoo/mine.yaml::net", "zoo/mine.yaml:net")
TEST_SPELLINGS = ("tests/test_a.py::test_net[x:1]", f"tests/test_a.py/{key_of('', 'test_net[x:1]')}")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"zoo/models.py": MODELS, "zoo/mine.yaml": ZOO, "birds/birds.yaml": ZOO}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "birds" / "models.py").write_text(MODELS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nlens_zoo_paths = zoo\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("def pytest_lens_register_zoo(config):\n    return 'birds/birds.yaml'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # pytest adds the folder of a conftest file
    monkeypatch.delitem(sys.modules, "conftest", raising=False)
    store = Store.of(tmp_path)
    for key in ("mine/net", "other/net", key_of("tests/test_a.py", "test_net[x:1]")):
        store.accept(key, Snapshot(model="Net"))
        store.keep(key, Snapshot(model="Other", totals={"parameters": 9}))
    return tmp_path


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_commands_on_baselines_take_each_spelling(spelling: str, capsys: pytest.CaptureFixture[str]):
    for command, said in (("ls", "mine/net  changed, waits"), ("show", "Net: \n"), ("diff", "mine/net: ")):
        assert main([command, spelling]) == 0
        assert said in capsys.readouterr().out
    assert main(["accept", spelling]) == 0
    assert capsys.readouterr().out == "stored lens_baselines/mine/net.json\n"
    Store.of(Path()).keep("mine/net", Snapshot(model="Net"))
    assert main(["prune", spelling]) == 0
    assert len(Store.of(Path()).waiting()) == 2


@pytest.mark.parametrize("spelling", TEST_SPELLINGS)
def test_a_tests_baseline_is_found_by_its_node_id(spelling: str, capsys: pytest.CaptureFixture[str]):
    assert main(["diff", spelling]) == 0
    assert main(["accept", spelling]) == 0
    assert "stored lens_baselines/tests/test_a.py/test_net-x-1-" in capsys.readouterr().out


def test_globs_take_each_spelling(capsys: pytest.CaptureFixture[str]):
    for glob in ("mine/*", "mine:*", "zoo/mine.yaml::*", "mine:n?t"):
        assert main(["ls", glob]) == 0
        assert "1 baseline, 1 waiting" in capsys.readouterr().out
    assert main(["diff"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_log_takes_each_spelling(spelling: str, capsys: pytest.CaptureFixture[str]):
    author = ["-c", "user.name=someone", "-c", "user.email=someone"]
    for command in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "--message=first"]):
        subprocess.run(["git", *command], check=True)
    assert main(["log", spelling]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" first")


@pytest.mark.parametrize("spelling", [*SPELLINGS, "birds:net", "birds/birds.yaml::net", "mine/net:v2", "mine:net:v2"])
def test_commands_that_run_models_take_each_spelling(spelling: str, capsys: pytest.CaptureFixture[str]):
    assert main(["repro", spelling, "nothing"]) == 2
    name = "net:v2" if "v2" in spelling else "net"
    assert f"{'birds' if 'birds' in spelling else 'mine'}:{name} has no operation" in capsys.readouterr().err
    releases = ["--good=2.9.1", "--bad=2.10.0", "--releases=", "--dry-run", "--no-install"]
    assert main(["bisect", spelling, *releases]) == 0


def test_zoos_are_those_that_pytest_finds(capsys: pytest.CaptureFixture[str]):
    assert main(["zoo", "list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["mine", "2", "zoo/mine.yaml"] in lines
    assert ["birds", "2", "birds/birds.yaml"] in lines
    assert main(["zoo", "list", "birds", "net"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["diff", "mine:nett"], "nothing waits to be accepted for 'mine:nett': did you mean 'mine/net'"),
        (["show", "net"], "no baseline 'net' in lens_baselines: did you mean 'mine/net' or 'other/net'?"),
        (["accept", "mien:net"], "did you mean 'mine/net'?"),
        (["show", "*/net"], "'*/net' names 2 models (mine/net, other/net, …): name one"),
        (["repro", "net"], "expected a model such as mine:net or birds:net, got 'net'"),
        (["repro", "mine/nett"], "zoo 'mine' has no model 'nett': did you mean 'net'"),
        (["repro", "mien/net"], "unknown zoo 'mien': did you mean 'mine'?"),
        (["repro", "zoo/mien.yaml::net"], "file not found: zoo/mien.yaml: did you mean 'zoo/mine.yaml'?"),
        (["repro", "mine:*"], "'mine:*' names 2 models (mine:net, mine:net:v2, …): name one"),
        (["zoo", "list", "mine:net"], "expected a zoo, got the model 'mine:net': write mine net"),
        (
            ["bisect", "tests/test_a.py::test_x", "--git=a..b"],
            "expected a zoo's model, got the test tests/",
        ),
    ],
)
def test_errors_show_the_nearest_name(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_broken_conftest_is_told(project: Path, capsys: pytest.CaptureFixture[str]):
    (project / "conftest.py").write_text("import no_such_module\n")
    assert main(["zoo", "list", "mine"]) == 2
    said = capsys.readouterr().err
    assert "pytest cannot read the project's settings" in said
    assert "No module named 'no_such_module'" in said


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_pytest_takes_each_spelling_after_its_option(pytester: pytest.Pytester, project: Path, spelling: str):
    (project / "pytest.ini").write_text("[pytest]\nlens_zoo_paths = zoo\n")
    pytester.chdir()
    for name in ("zoo/models.py", "zoo/mine.yaml", "pytest.ini"):
        (pytester.path / name).parent.mkdir(exist_ok=True)
        (pytester.path / name).write_text((project / name).read_text())
    result = pytester.runpytest_inprocess("--lens-zoo", spelling)
    result.assert_outcomes(passed=1)


def test_pytest_says_how_a_zoos_model_is_named(pytester: pytest.Pytester):
    (pytester.path / "model_zoo_configs").mkdir()
    for file in ("model_zoo_configs/mine.yaml", "birds.yaml"):
        (pytester.path / file).write_text(ZOO)
    pytester.makeconftest("def pytest_lens_register_zoo(config):\n    return 'birds.yaml'\n")
    for zoo, sign in product(("mine", "birds"), ":/"):
        result = pytester.runpytest_inprocess(f"{zoo}{sign}net")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*not found: {zoo}{sign}net", f"(*named by an option: --lens-zoo={zoo}:net)"])
