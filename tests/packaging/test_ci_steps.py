"""The steps of `action.yml` and of the files in docs/ci.md run as they stand, in a runner's environment."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

ZOO = "provider: 'python:models.py:zoo'\ndefaults:\n  input: {shape: [2, 3]}\n"
MODELS = """
from torch import nn
def zoo():
    return {"tiny": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU())}
"""
PIP = """#!/bin/sh
if [ "$2" = pip ]; then shift 2; echo "$@" >> "$PIP_CALLS"; echo /cache; else exec "%s" "$@"; fi
"""


@pytest.fixture
def project(tmp_path):
    """A project with a zoo, and a Python whose pip only notes what it is asked for."""
    project = tmp_path / "project"
    (project / "zoo").mkdir(parents=True)
    (project / "zoo" / "mine.yaml").write_text(ZOO)
    (project / "zoo" / "models.py").write_text(MODELS)
    (project / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "bin").mkdir()
    for name, text in (("python", PIP % sys.executable), ("pytest-lens", _lens())):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return project


def _lens() -> str:
    return f'#!/bin/sh\nexec "{sys.executable}" -m pytest_torchlens.cli "$@"\n'


def steps(project: Path, source: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the steps of a file in a project."""
    temp = project.parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_"))}
    environment |= {"PATH": f"{temp / 'bin'}:{environment['PATH']}", "PIP_CALLS": str(temp / "pip.txt")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        ".ci/steps.py",
        source,
        "--workspace",
        str(project),
        "--temp",
        str(temp / "runner"),
        *more,
    ]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def lens(project: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "zoo/mine.yaml", "--lens-validate", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=project, env=environment, capture_output=True, check=True)


def arguments(text: str) -> tuple[str, str]:
    return "--set", f"inputs.arguments={text}"


def test_the_action_installs_runs_reports_and_passes(project):
    ran = steps(project, "action.yml", *arguments("zoo/mine.yaml -k 'tiny or large' --lens-validate"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"install {ROOT}[zoo,dot]" in (project.parent / "pip.txt").read_text()
    assert (project.parent / "runner" / "lens-report" / "index.html").exists()
    assert "tiny" in (project.parent / "runner" / "summary.md").read_text()


def test_the_action_passes_where_nothing_waits_to_be_accepted(project):
    lens(project, "--lens-update=new")
    ran = steps(project, "action.yml", *arguments("zoo/mine.yaml --lens-validate"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not (project / ".lens" / "pending").exists()
    assert "waiting to be accepted" not in (project.parent / "runner" / "summary.md").read_text()
    ran = steps(project, "docs/ci.md:.gitlab-ci.yml", "--job", "models", "--env", "TORCH=2.14.1")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("text", ["a$(touch${IFS}{})", "a`touch${IFS}{}`", "a;touch${IFS}{}", "a\ntouch {}"])
def test_the_inputs_of_the_action_are_split_and_never_run(text, project):
    """A branch's name may come from a stranger's pull request."""
    mark = project.parent / "pwned"
    text = text.replace("{}", str(mark))
    ran = steps(project, "action.yml", *arguments(f"--co -q --rootdir={text}"), "--set", f"inputs.install={text} 'b c'")
    assert not mark.exists()
    assert ran.returncode == 4, ran.stdout + ran.stderr
    assert f"{' '.join(text.split())} b c\n" in (project.parent / "pip.txt").read_text()


@pytest.mark.parametrize("name", ["arguments", "install"])
def test_an_input_with_an_open_quotation_mark_is_named(name, project):
    ran = steps(project, "action.yml", "--set", f"inputs.{name}=-k 'tiny")
    assert ran.returncode == 4
    assert f"LENS_{name.upper()}: No closing quotation: -k 'tiny" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_key_of_the_cache_is_one_that_github_takes(project):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    cache = next(step for step in action["runs"]["steps"] if "key" in step.get("with", {}))["with"]
    first = next(step for step in action["runs"]["steps"] if step.get("id") == "cache")
    shown = {"run": 'echo "$KEY" >> keys.txt', "env": {"KEY": cache["key"]}}
    short = project.parent / "action.yml"
    short.write_text(yaml.safe_dump({"inputs": action["inputs"], "runs": {"steps": [first, shown]}}))
    for install in ("torch", "torch>=2.13,<2.14 " * 60, "a\nb"):
        ran = steps(project, str(short), "--set", f"inputs.install={install}", "--set", "runner.os=Linux")
        assert ran.returncode == 0, ran.stderr
    keys = (project / "keys.txt").read_text().splitlines()
    assert len(set(keys)) == 3
    assert all(len(key) <= 512 and "," not in key for key in keys)


def test_the_action_fails_with_pytests_status_and_says_how_to_accept(project):
    lens(project, "--lens-update=new")
    (project / "zoo" / "models.py").write_text(MODELS.replace("ReLU", "GELU"))
    ran = steps(project, "action.yml", *arguments("zoo/mine.yaml --lens-validate"), "--set", "inputs.name=-3.11")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    summary = (project.parent / "runner" / "summary.md").read_text()
    assert "1 waiting to be accepted" in summary
    assert "lens-pending-3.11" in summary
    assert len(list((project / ".lens" / "pending").rglob("*.json"))) == 1
    misused = steps(project, "action.yml", *arguments("zoo/mine.yaml --lens-no-such-option"))
    assert misused.returncode == 4


def test_the_matrix_of_versions_compares_the_sets_and_fails_with_them(project):
    for version in ("2.13.0", "2.14.1"):
        lens(project, "--lens-update=all", f"--lens-baseline=torch-{version}")
    run = ("docs/ci.md:versions.yml", "--job", "matrix")
    assert (ran := steps(project, *run)).returncode == 0, ran.stdout + ran.stderr
    summary = project.parent / "runner" / "summary.md"
    assert "identical" in summary.read_text()
    (project / "zoo" / "models.py").write_text(MODELS.replace("ReLU", "GELU"))
    lens(project, "--lens-update=all", "--lens-baseline=torch-2.14.1")
    assert steps(project, *run).returncode == 1
    assert "structure" in summary.read_text()


def test_the_job_of_gitlab_runs(project):
    ran = steps(project, "docs/ci.md:.gitlab-ci.yml", "--job", "models", "--env", "TORCH=2.14.1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "install torch==2.14.1 git+https" in (project.parent / "pip.txt").read_text()
    for name in ("lens-report/index.html", "lens-report.md", "junit.xml"):
        assert (project / name).exists(), name


def test_a_step_that_fails_fails_the_run_and_expressions_in_shell_are_refused(project, tmp_path):
    action = tmp_path / "a.yml"
    action.write_text("runs: {steps: [{run: 'false | cat'}, {run: 'echo later'}, {if: always(), run: 'echo last'}]}")
    ran = steps(project, str(action))
    assert (ran.returncode, "later\n" in ran.stdout, "last\n" in ran.stdout) == (1, False, True)
    action.write_text("runs: {steps: [{run: 'echo ${{ inputs.x }}'}]}")
    assert "expressions belong into env" in steps(project, str(action), "--set", "inputs.x=1").stderr


def test_the_examples_of_the_runner_have_all_that_it_requires(project):
    examples = [line.strip() for line in (ROOT / ".ci" / "steps.py").read_text().splitlines() if "python .ci/" in line]
    assert len(examples) == 3
    for example in examples:
        words = shlex.split(example.replace("DIR", str(project)).replace("TEMP", str(project.parent / "runner")))
        command = [sys.executable, *words[1:], "--help-me"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert "unrecognized arguments: --help-me" in ran.stderr
