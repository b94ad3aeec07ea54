from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytest_torchlens.run.repro.folder import FolderError
from pytest_torchlens.run.repro.folder import check_is_ours
from pytest_torchlens.run.repro.folder import write_reproduction
from pytest_torchlens.run.repro.gap import Form
from pytest_torchlens.run.repro.gap import Gap
from pytest_torchlens.run.repro.gap import gap_between
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.program import program_of
from pytest_torchlens.run.repro.script import Story
from pytest_torchlens.run.repro.script import script_text
from tests.run.repro.programs import history_of
from tests.run.repro.test_program import Odd
from tests.run.repro.test_program import nothing_stored
from tests.run.repro.test_program import results

STORY = Story("exp computes other values.", ("expected: torch 1", "got: torch 2"), ("From a model.",))


def written(folder: Path, function, x: torch.Tensor, wrong, form: Form | None = None) -> Path:
    """Write a reproduction whose expected result is what is computed here after `wrong`."""
    recording = history_of(Odd(function), x).recording
    program: Program = program_of(recording, [len(recording.calls) - 1], nothing_stored)
    (right,) = results(program)
    expected = wrong(right)
    gap = Gap(form, 1.0) if form else gap_between(expected, right) or Gap(Form.VALUES, 1.0, 1e-6)
    text = script_text(program, expected, gap, STORY)
    write_reproduction(folder, text, program, expected, gap)
    return folder / "repro.py"


def run(script: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def same(right: torch.Tensor) -> torch.Tensor:
    return right


def off(right: torch.Tensor) -> torch.Tensor:
    return right + 0.125


@pytest.mark.slow
@pytest.mark.parametrize("x", [torch.randn(4, 3), torch.randn(4).bfloat16(), torch.randn(4, dtype=torch.complex64)])
def test_the_file_ends_with_one_where_values_differ(x: torch.Tensor, tmp_path: Path):
    status, output = run(written(tmp_path / "wrong", torch.exp, x, off))
    assert (status, output.count("\n")) == (1, 1)
    assert f"{x.numel()} of {x.numel()} values differ from the expected by more than" in output
    status, output = run(written(tmp_path / "right", torch.exp, x, same))
    assert (status, output.count("\n")) == (0, 1)


@pytest.mark.slow
def test_the_file_ends_with_one_where_strides_differ(tmp_path: Path):
    status, output = run(written(tmp_path / "wrong", torch.exp, torch.randn(4, 3), lambda y: y.t().contiguous().t()))
    assert status == 1
    assert output.endswith("((4, 3), torch.float32, (3, 1)), expected ((4, 3), torch.float32, (1, 4))\n")
    assert run(written(tmp_path / "right", torch.exp, torch.randn(4, 3), same, Form.FORM))[0] == 0


@pytest.mark.slow
def test_the_file_ends_with_one_where_runs_differ(tmp_path: Path):
    """An uninitialised random generator stands for a kernel that is not steady."""
    status, output = run(
        written(tmp_path / "wrong", torch.Tensor.bernoulli, torch.full((64,), 0.5), same, Form.REPEATS)
    )
    assert (status, "0 of 19 runs" in output) == (0, True)  # its generator is restored before each
    text = (tmp_path / "wrong" / "repro.py").read_text().replace("    torch.set_rng_state(rng_state)\n", "")
    (tmp_path / "wrong" / "repro.py").write_text(text)
    status, output = run(tmp_path / "wrong" / "repro.py")
    assert (status, "19 of 19 runs give other values than the first" in output) == (1, True)


def test_the_file_is_short_and_imports_torch_alone(tmp_path: Path):
    text = written(tmp_path / "it", torch.exp, torch.randn(4, 3), off).read_text()
    imported = {
        alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {str(node.module) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert imported == {"json", "math", "sys", "pathlib", "torch"}
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 110


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path):
    check_is_ours(tmp_path / "new")
    check_is_ours(tmp_path)
    script = written(tmp_path / "ours", torch.exp, torch.randn(4), off)
    check_is_ours(script.parent)
    script.write_text(script.read_text().replace("LIMIT = ", "LIMIT = 10 * "), encoding="utf-8")
    with pytest.raises(FolderError, match="changed by hand; keep it, and name another folder with --out"):
        check_is_ours(script.parent)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FolderError, match=r"has other files \(notes.txt\); name another folder with --out"):
        check_is_ours(tmp_path)
    with pytest.raises(FolderError, match="is a file"):
        check_is_ours(tmp_path / "notes.txt")
