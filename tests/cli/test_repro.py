"""``pytest-lens repro`` with kernels of PyTorch's own replaced in another environment, beneath the recorder."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import torch

from pytest_torchlens.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = """
import itertools

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        x = self.linear(self.norm(x)).clone()
        x.mul_(2)
        x = F.gelu(x, approximate="tanh").softmax(-1)
        return F.hardswish(F.silu(x)), torch.cat([x, x.sigmoid()], dim=1)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(nn.Softplus())

    def forward(self, x):
        return self.inner(x) + 1


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("not today\\nnor tomorrow")


def zoo():
    return {"net": Net, "scripted": Scripted, "raises": Raises}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults:
  input: {shape: [8, 16]}
"""
# Read by each start of the interpreter, as if its PyTorch were built so.
SITECUSTOMIZE = """
import itertools, json, pathlib, torch

KERNELS = torch.library.Library("aten", "IMPL")
COUNT = itertools.count()
NOTED = []  # tensors, so that no other gets their memory
FAULTS = {
    "scale": lambda t, x: t * (1 + 2**-9),
    "spot": lambda t, x: torch.where(torch.arange(t.numel()).view(t.shape) == 3, t + t.abs().max() / 8, t),
    "nan": lambda t, x: torch.where(t == t.max(), torch.nan, t),
    "strides": lambda t, x: t.t().contiguous().t(),
    "unsteady": lambda t, x: t * (1 + next(COUNT) % 7 * 2**-9),
    "with threads": lambda t, x: t * (1 + 2**-9) if torch.get_num_threads() > 1 else t,
    "in batches": lambda t, x: t * (1 + 2**-9) if x.shape[0] % 2 == 0 else t,
    "mixing rows": lambda t, x: t + t.mean(0) / 8,
    "in channels_last": lambda t, x: t * (1 + 2**-9) if x.dim() == 4 and not x.is_contiguous() else t,
    "note": lambda t, x: NOTED.append(t) or t,
}


def replaced(name, fault):
    sound = torch.library.get_kernel(f"aten::{name}", "CPU")

    def kernel(keys, x, *args, **kwargs):
        args = [torch.tensor(arg) if ".Tensor" in name else arg for arg in args]
        result = sound.call_boxed(keys, x, *args, **kwargs)
        first, *others = result if isinstance(result, tuple) else (result,)
        if fault == "after":
            wrong = first * 2 if x.data_ptr() in [noted.data_ptr() for noted in NOTED] else first
        else:
            wrong = FAULTS[fault](first, x)
        if name.partition(".")[0].endswith("_"):
            return first.copy_(wrong)
        return (wrong, *others) if others else wrong

    KERNELS.impl(name, kernel, "CPU", with_keyset=True)


for name, fault in json.loads(pathlib.Path(__file__).with_name("kernels.json").read_text()).items():
    replaced(name, fault)
"""
slow = pytest.mark.slow
needs_kernels = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="PyTorch before 2.9: no get_kernel")


class Project:
    """A project and an interpreter whose kernels are replaced."""

    def __init__(self, folder: Path, site: Path, python: Path) -> None:
        self.folder, self._site, self.python = folder, site, python
        (folder / "models.py").write_text(MODELS, encoding="utf-8")
        (folder / "net.yaml").write_text(ZOO, encoding="utf-8")

    def break_kernels(self, faults: dict[str, str]) -> None:
        """Replace kernels, by their names, from the next start of the interpreter on."""
        (self._site / "kernels.json").write_text(json.dumps(faults))

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run the interpreter with these arguments; return its status and all that it printed."""
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def repro(self, *arguments: str) -> tuple[int, str]:
        return self.run("-m", "pytest_torchlens.cli", "repro", *arguments)

    def script(self) -> Path:
        (script,) = self.folder.glob("repro-*/repro.py")
        return script


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the packages' folder and the interpreter of an environment with this one's packages."""
    folder = tmp_path_factory.mktemp("bad")
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    (python,) = [path for path in (folder / "bin" / "python", folder / "Scripts" / "python.exe") if path.exists()]
    (site,) = [path for path in folder.rglob("site-packages") if "lib64" not in path.parts]
    paths = dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib")))
    (site / "these.pth").write_text("\n".join(paths), encoding="utf-8")
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    return site, python


@pytest.fixture
def project(tmp_path: Path, environment: tuple[Path, Path]) -> Project:
    return Project(tmp_path, *environment)


def exit_status(python: str | Path, script: Path) -> int:
    """Run a file where no module of this package can be imported."""
    blocked = "import runpy, sys; sys.modules['pytest_torchlens'] = None"
    code = f"{blocked}; runpy.run_path({str(script)!r}, run_name='__main__')"
    return subprocess.run([str(python), "-I", "-c", code], capture_output=True, check=False).returncode


@slow
@needs_kernels
@pytest.mark.parametrize(
    ("faults", "operation", "code"),
    [
        ({"native_layer_norm": "scale"}, "norm/layernorm", "torch.nn.functional.layer_norm(x, (1,), "),
        ({"mul_.Tensor": "spot"}, "/mul", "x.mul_(2)"),
        ({"gelu": "scale"}, "/gelu", 'gelu(x, approximate="tanh")'),
        ({"_softmax": "nan"}, "/softmax", "x.softmax(-1)"),
        ({"silu": "note", "hardswish": "after"}, "/hardswish", "y = torch.nn.functional.silu(x, inplace=False)"),
    ],
    ids=["normalisation", "in place", "keywords", "not a number", "run of two"],
)
def test_a_wrong_kernel_fails_there_and_passes_here(
    project: Project, faults: dict[str, str], operation: str, code: str
):
    project.break_kernels(faults)
    status, output = project.repro("net.yaml::net", f"--against={sys.executable}")
    assert (status, output.splitlines()[-1]) == (0, "confirmed: it fails here and passes there"), output
    assert output.startswith(f"net:net, {operation}: ")
    assert "inputs shrunk from" in output
    script = project.script()
    text = script.read_text(encoding="utf-8")
    assert code in text
    assert len(text.splitlines()) < 60
    ast.parse(text)
    assert (exit_status(project.python, script), exit_status(sys.executable, script)) == (1, 0)


@slow
@needs_kernels
def test_other_strides_and_other_values_each_time(project: Project):
    project.break_kernels({"sigmoid": "strides"})
    status, output = project.repro("net.yaml::net", f"--against={sys.executable}", "--out=strides")
    assert (status, output.startswith("net:net, /sigmoid: meta-change")) == (0, True), output
    assert "returns another shape, dtype or strides" in (project.folder / "strides" / "repro.py").read_text()
    project.break_kernels({"sigmoid": "unsteady"})
    for named in ([], ["/sigmoid"]):
        status, output = project.repro("net.yaml::net", *named, f"--against={sys.executable}", "--out=each")
        assert (status, "runs give other values than the first" in output) == (0, True), output
    status, output = project.repro("net.yaml::net", "--out=alone")  # the verdict on its record fails
    assert (status, "runs give other values than the first" in output) == (0, True), output
    assert "not confirmed in the other environment: none was named (--against)" in output
    assert exit_status(project.python, project.folder / "alone" / "repro.py") == 1
    assert exit_status(sys.executable, project.folder / "alone" / "repro.py") == 0


TEST = """
import torch
from torch import nn


def test_net(lens_trace, lens_check):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).eval()
    lens_check(lens_trace(net, torch.randn(4, 8)))
"""


@slow
@needs_kernels
def test_one_environment_with_saved_activations(project: Project):
    """A failed check of a test, and a zoo's model: what is expected is what the baseline's pass computed."""
    (project.folder / "test_net.py").write_text(TEST, encoding="utf-8")
    project.break_kernels({})
    project.run("-m", "pytest", "-q", "test_net.py", "--lens-update=new", "--lens-keep=activations")
    validated = "net.yaml::net", "--lens-validate", "--lens-update=new", "--lens-keep=activations"
    project.run("-m", "pytest", "-q", *validated)
    status, output = project.repro("net.yaml::net")
    assert (status, "nothing to reproduce" in output) == (1, True), output

    project.break_kernels({"gelu": "spot"})
    for model, operation in (("test_net.py::test_net", "1/gelu"), ("net.yaml::net", "/gelu")):
        status, output = project.repro(model, "--out=it")
        assert (status, f", {operation}: regression" in output) == (0, True), output
        assert "not confirmed in the other environment: none was named (--against)" in output
        assert exit_status(project.python, project.folder / "it" / "repro.py") == 1
        assert exit_status(sys.executable, project.folder / "it" / "repro.py") == 0
    assert not list((project.folder / ".lens").rglob("pending/**/net.json")), "a zoo's model leaves nothing to accept"


# -- what is refused: in this process ----------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, which must be refused; return what it says."""
    assert main(["repro", *arguments]) == 2
    return capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "net.yaml").write_text(ZOO, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net"], "expected a model such as torchvision:resnet18 or zoo.yaml::name, got 'net'"),
        (["net.yaml::nett"], "zoo 'net' has no model 'nett': did you mean 'net'?"),
        (["net.yaml::*"], "'net.yaml::*' names 3 models (net:net, net:raises, net:scripted, …): name one"),
        (["nowhere.yaml::net"], "nowhere.yaml"),
        (["torchvison:resnet18"], "unknown zoo 'torchvison': did you mean 'torchvision'"),
        (["net.yaml::net", "--against=nowhere/python"], "--against: expected a Python interpreter such as"),
        (["net.yaml::net", "--out=full"], "full has other files (mine.txt); name another folder with --out"),
        (["net.yaml::net"], "net:net has nothing to be compared with: no baseline is stored"),
        (
            ["net.yaml::net", "norm/layernrm"],
            "net:net has no operation 'norm/layernrm': did you mean 'norm/layernorm'?",
        ),
        (["net.yaml::net", "norm/layernorm"], "what norm/layernorm should compute is not known: name the interpreter"),
        (["net.yaml::raises"], "net:raises does not run in this environment: ValueError: not today"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").touch()
    before = sorted(folder.rglob("*.*"))
    said = refused(capsys, *arguments)
    assert said.startswith("pytest-lens: error: ")
    assert message in said
    assert [path for path in sorted(folder.rglob("*.*")) if path.suffix != ".pyc"] == before


@slow
def test_what_torch_alone_cannot_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["repro", "net.yaml::scripted", "inner/softplus", f"--against={sys.executable}"]) == 1
    said = capsys.readouterr().out
    assert "cannot be written as code of torch alone: its inside was not recorded" in said


@slow
def test_an_operation_that_does_not_differ(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["repro", "net.yaml::net", f"--against={sys.executable}"]) == 1
    assert "net:net computes what" in capsys.readouterr().out
    assert main(["repro", "net.yaml::net", "/gelu", f"--against={sys.executable}"]) == 1
    assert "/gelu computes what is expected when it runs by itself, alone and after the" in capsys.readouterr().out
    assert not list(folder.glob("repro-*"))
