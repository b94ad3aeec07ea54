from __future__ import annotations

import json
import os
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from pytest_torchlens.run import Against
from pytest_torchlens.run import OtherPython
from tests.plugin.kernels import ROUGH
from tests.plugin.kernels import ZOO
from tests.plugin.kernels import accused
from tests.plugin.kernels import compared
from tests.plugin.kernels import make_project

OTHER = os.environ.get("LENS_OTHER_PYTHON", "").partition(os.pathsep)[0]
"""An interpreter with another PyTorch, for the test that needs two; the first, if several are named."""
ELSEWHERE = """
import sys

HERE = "_pytest" in sys.modules  # of the other process it is none


class Here(nn.Module):
    def __init__(self):
        super().__init__()
        if not HERE:
            raise ImportError("no such library in this environment")

    def forward(self, x):
        return x + 1


def zoo():
    return {"here": Here}
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return make_project(pytester)


def against(project: pytest.Pytester, name: object, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("zoo/net.yaml", "--lens-validate", f"--lens-against={name}", *arguments)


def test_kernels_of_another_environment_are_told_apart_with_nothing_stored(project: pytest.Pytester):
    """The other process has PyTorch's own kernels: only a conftest of pytest replaces them."""
    options = f"--lens-against={sys.executable}", "--lens-fail-on=regression,time:+20%"
    found, result = compared(project, *options, gelu=ROUGH, silu=ROUGH)
    assert accused(found) == {"/gelu": "local-change", "/silu": "local-change"}
    assert [finding["alone"]["exactness"] for finding in found["findings"]] == ["less exact", "less exact"]
    assert found["against"].startswith(f"{sys.executable} (torch ")
    result.assert_outcomes(passed=1)
    untimed = "times not compared: the other interpreter's run is not timed"
    result.stdout.fnmatch_lines([f"against {sys.executable} (torch *): 1 local-change", untimed])
    assert "accept" not in result.stdout.str()
    assert not (project.path / ".lens").exists()
    assert not (project.path / "lens_baselines").exists()


@pytest.mark.parametrize("fail_on", ["regression", "new"])  # it is new too, with nothing to compare with
def test_a_model_that_the_other_cannot_build_fails_and_says_why(fail_on: str, project: pytest.Pytester):
    models = project.path / "zoo" / "models.py"
    models.write_text(models.read_text() + ELSEWHERE, encoding="utf-8")
    result = against(project, sys.executable, "--lens-parts=replay", f"--lens-fail-on={fail_on}")
    result.assert_outcomes(failed=1)
    said = (
        "net:here: ImportError in stage 'compare': not run by *python* (torch *): no such library in this environment*"
    )
    result.stdout.fnmatch_lines([said])


def test_activations_that_could_not_be_kept_are_told(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Elsewhere the disk may be full; here a file is in the way."""

    class Hindered(Against):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            path = Path(self.policy.activations)
            path.parent.mkdir(parents=True)
            path.touch()

    monkeypatch.setattr("pytest_torchlens.run.Against", Hindered)
    found, _ = compared(project, f"--lens-against={sys.executable}", gelu=ROUGH, silu=ROUGH)
    assert accused(found) == {"/gelu": "local-change"}
    assert any("activations not saved: " in note and "Not a directory" in note for note in found["notes"])


def test_the_other_gets_modules_of_the_users_and_none_of_this_python(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/usr/lib64/python3.9")
    parts = ["/usr/lib64/python3.9", "/usr/lib64/python3.9/lib-dynload", "/usr/lib64/python3.9/site-packages"]
    monkeypatch.setattr(sys, "path", ["", "/home/me/project", *parts, f"{sys.base_prefix}/lib/python3.9"])
    assert json.loads(OtherPython(sys.executable, "2.9.1").worker()[-1]) == ["/home/me/project"]


def python_in(folder: Path) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    (python,) = [path for path in (folder / "bin" / "python", folder / "Scripts" / "python.exe") if path.exists()]
    return python


def test_an_environment_without_what_is_needed_is_a_usage_error(project: pytest.Pytester):
    python = python_in(project.path / "other")
    result = against(project, python)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--lens-against: *python* has no torch; install it there (*pip install*"])
    (site,) = (project.path / "other").rglob("site-packages")
    (site / "torch").mkdir()
    (site / "torch-2.9.1.dist-info").mkdir()
    (site / "torch-2.9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    result = against(project, os.path.relpath(python, project.path))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--lens-against: *python* lacks *xxhash*, which pytest-torchlens needs; install it (*"]
    )


def _script(folder: Path, text: str) -> Path:
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    script.chmod(0o755)
    return script


@pytest.mark.skipif(os.name == "nt", reason="the interpreter is a shell script")
def test_an_interpreter_that_says_something_of_its_own_first_is_heard(tmp_path: Path):
    talkative = _script(tmp_path, f'echo "modules loaded"\nexec {sys.executable} "$@"')
    assert OtherPython.find(str(talkative), tmp_path).torch == OtherPython.find(sys.executable, tmp_path).torch


@pytest.mark.skipif(os.name == "nt", reason="the interpreter is a shell script")
def test_what_an_interpreter_last_said_is_why_it_does_not_run(tmp_path: Path, project: pytest.Pytester):
    _script(tmp_path, "echo 'starting' >&2; echo 'libpython is gone' >&2; exit 1")
    result = against(project, str(tmp_path / "python"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*expected a Python interpreter, got *python: libpython is gone"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere/python", "expected a Python interpreter such as *, got 'nowhere/python'"),
        ("zoo", "expected a Python interpreter, got the folder *zoo"),
        ("zoo/net.yaml", "expected a Python interpreter, got *net.yaml: *"),
    ],
)
def test_what_is_no_interpreter_is_a_usage_error(name: str, said: str, project: pytest.Pytester):
    result = against(project, name)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--lens-against: {said}"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zoo/net.yaml"], "--lens-against needs --lens-validate, which compares models with baselines"),
        (["--lens-validate"], "--lens-against needs models of a zoo: add --lens-zoo ZOO:NAME"),
        (
            ["zoo/net.yaml", "--lens-validate", "--lens-update=new"],
            "--lens-update needs stored baselines, which --lens-against does not use: remove one",
        ),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(arguments: list[str], said: str, project: pytest.Pytester):
    result = project.runpytest_inprocess(*arguments, f"--lens-against={sys.executable}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}"])


NORM = """
from torch import nn


def zoo():
    return {"norms": lambda: nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 768), nn.LayerNorm(768))}
"""


@pytest.mark.slow
@pytest.mark.skipif(not OTHER, reason="LENS_OTHER_PYTHON names no interpreter with another PyTorch")
def test_two_versions_of_pytorch(project: pytest.Pytester):
    (project.path / "zoo" / "models.py").write_text(NORM, encoding="utf-8")
    (project.path / "zoo" / "net.yaml").write_text(ZOO.replace("64", "768"), encoding="utf-8")
    result = against(project, OTHER, "--lens-parts=replay")
    result.assert_outcomes(passed=1)
    found = json.loads((project.path / "comparison.json").read_text())
    assert any(axis.startswith("torch ") for axis in found["axes"]), "the other PyTorch is of the same version"
    if "(torch 2.9" in found["against"]:  # whose layer norm was another
        assert accused(found) == {"0/layernorm": "local-change", "2/layernorm": "local-change"}
        assert all(finding["alone"]["exactness"] != "unknown" for finding in found["findings"])
