"""``pytest-lens repro --check``: failed checks, with kernels of PyTorch's own replaced beneath the recorder."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_torchlens.cli import main
from tests.cli.test_repro import Project
from tests.cli.test_repro import environment
from tests.cli.test_repro import exit_status
from tests.cli.test_repro import needs_kernels
from tests.cli.test_repro import slow

__all__ = ["environment"]
MODELS = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x):
        x = F.silu(self.conv(x)).mean((2, 3))
        x = self.linear(x).clone()
        return x.tanh_().sigmoid()


class Counter(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


class Detached(Net):
    def forward(self, x):
        return super().forward(x.detach()).detach() + 1


class Drops(Net):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5)


class Lost(Net):
    def __init__(self):
        super().__init__()
        self.scale = torch.rand(4)

    def forward(self, x):
        return super().forward(x) * self.scale


class Strided(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x).view(1, -1)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids, self.places = nn.Embedding(9, 4), nn.Embedding(64, 4)

    def forward(self, input_ids, attention_mask=None):
        x = self.ids(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        return x.sin() + x.mean(1, keepdim=True)


class Ranked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        return x.sin() + x.cumsum(0)


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids, self.head = nn.Embedding(9, 4), nn.Linear(4, 4)

    def forward(self, input_ids):
        x = self.ids(input_ids)
        return self.head(x + x.mean(1, keepdim=True))


class Squared(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        x = self.head(x) * 3000
        return x * x.pow(2).mean(-1, keepdim=True).rsqrt()


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("not today")


class Exits(nn.Module):
    def forward(self, x):
        raise SystemExit(3)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class Cubed(Squared):
    def forward(self, x):
        return Cube.apply(self.head(x))


def zoo():
    kinds = [Net, Counter, Detached, Drops, Lost, Strided, Padded, Ranked, Averaged, Squared]
    return {kind.__name__.lower(): kind for kind in (*kinds, Raises, Exits, Cubed)}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults:
  input: {shape: [1, 3, 8, 8]}
rules:
  - match: [padded, averaged]
    input: {shape: [1, 12], dtype: int64, range: [1, 9]}
    checks: {causal: {ids: input_ids}}
  - match: [ranked, squared, cubed]
    input: {shape: [1, 4]}
    checks: {dtype: {types: float16}, gradients: {gradcheck: on}}
"""


@pytest.fixture
def project(tmp_path: Path, environment: tuple[Path, Path]) -> Project:
    made = Project(tmp_path, *environment)
    write(tmp_path)
    return made


def write(folder: Path) -> None:
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "net.yaml").write_text(ZOO, encoding="utf-8")


@slow
@needs_kernels
@pytest.mark.parametrize(
    ("check", "faults", "operation", "code"),
    [
        ("threads", {"silu": "with threads"}, "silu_1_2", "torch.set_num_threads(2)"),
        ("layout", {"silu": "in channels_last"}, "silu_1_2", "x = x.to(memory_format=torch.channels_last)"),
        ("batch-size", {"sigmoid": "in batches"}, "sigmoid_1_7", "x = x[:1]"),
        ("rows", {"sigmoid": "mixing rows"}, "sigmoid_1_7", "others = operation(x_others)"),
        ("repeat", {"sigmoid": "unsteady"}, "sigmoid_1_7", "x.sigmoid()"),
        ("gradients", {"sigmoid_backward": "nan"}, "sigmoid_1_7", "torch.autograd.grad([y], [x], [gradient]"),
        ("compile", {"tanh": "scale"}, "tanh_1_6", 'other = torch.compile(plain, backend="aot_eager")'),
    ],
)
def test_a_wrong_kernel_fails_there_and_passes_here(
    project: Project, check: str, faults: dict[str, str], operation: str, code: str
):
    project.break_kernels(faults)
    status, output = project.repro("net.yaml::net", f"--check={check}", f"--against={sys.executable}")
    assert (status, output.splitlines()[-1]) == (0, "confirmed: it fails here, with torch alone"), output
    assert output.startswith(f"net:net, {operation}: {check}: ")
    assert "\nthere: exit 0: " in output
    script = project.script()
    text = script.read_text(encoding="utf-8")
    assert code in text
    assert len(text.splitlines()) < 65
    assert max(map(len, text.splitlines())) <= 120
    ast.parse(text)
    assert (exit_status(project.python, script), exit_status(sys.executable, script)) == (1, 0)


@slow
@pytest.mark.parametrize(
    ("model", "check", "line", "mend"),
    [
        ("strided", "layout", "view_1_2: layout: the model raised RuntimeError", ("x.view(1, -1)", "x.reshape(1, -1)")),
        (
            "detached",
            "gradients",
            "requires_grad of the result is False, of its input True",
            ("x.detach()", "x.clone()"),
        ),
        ("drops", "train-eval", "runs give other values than the first", ("training=True", "training=False")),
        ("ranked", "shapes", "as row 1 in a batch of 3", ("y = x.cumsum(0)", "y = x")),
        ("averaged", "causal", "smallest run: 2 operations", ("x.mean(1, keepdim=True)", "x.cumsum(1)")),
        (
            "smoothed",
            "causal",
            "avgpool1d_1_3: causal: the output changes before position",
            ("(x, 3, 1, 1)", "(x, 1, 1, 0)"),
        ),
        ("padded", "padding", "smallest run: 2 operations", ("x.mean(1, keepdim=True)", "x.mean(1, keepdim=True) * 0")),
        ("squared", "dtype", "pow_1_3: dtype: the output errs in float16", ("x.pow(2)", "x.clamp(-9, 9).pow(2)")),
    ],
)
def test_what_the_model_does_itself_fails_alone_and_passes_once_it_is_mended(
    model: str, check: str, line: str, mend: tuple[str, str], folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["repro", f"net.yaml::{model}", f"--check={check}", "--out=it"]) == 0
    assert line in capsys.readouterr().out
    script = folder / "it" / "repro.py"
    done = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    text = script.read_text(encoding="utf-8")
    assert mend[0] in text
    script.write_text(text.replace(*mend), encoding="utf-8")
    assert exit_status(sys.executable, script) == 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["net", "--check=row"], 2, "--check: expected repeat, rows"),
        (["net", "--check=all"], 2, "--check: name one of repeat, rows"),
        (["net", "sigmoid_1_7", "--check=rows"], 2, "--check: expected a zoo's model alone, got an operation besides"),
        (["net", "--check=repeat"], 1, "net:net: the check repeat does not fail here: passed"),
        (["counter", "--check=repeat"], 1, "the buffer 'calls' has changed between the passes, which is the work of"),
        (["raises", "--check=rows"], 2, "net:raises does not run in this environment: the model raised ValueError"),
        (["exits", "--check=rows"], 2, "net.yaml::exits ended the process: SystemExit(3)"),
        (["cubed", "--check=gradients"], 1, "the derivative is that of a custom autograd function, which is"),
        (["lost", "--check=state"], 1, "no file of torch alone shows it: what is lost is lost by saving"),
    ],
)
def test_what_has_no_file_is_told_with_what_to_do(
    arguments: list[str], status: int, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["repro", f"net.yaml::{arguments[0]}", *arguments[1:]]) == status
    said = capsys.readouterr()
    assert words in said.out + said.err
    assert bool(said.out) == (status == 1)
    assert ("what to do: " in said.out) == (arguments[0] in ("counter", "lost", "cubed"))
    assert not list(folder.glob("repro-*"))
