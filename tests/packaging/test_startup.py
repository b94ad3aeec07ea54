"""A pytest run that does not use the plugin pays nothing for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "PIL",
    "av",
    "executing",
    "filelock",
    "graphviz",
    "jinja2",
    "numpy",
    "pyarrow",
    "safetensors",
    "tabulate",
    "torch",
    "xxhash",
    "yaml",
}
LAYERS = ("baseline", "capture", "history", "replay", "validate", "draw", "recorder", "zoo", "report", "run")
ENGINE = {f"pytest_torchlens.{layer}" for layer in LAYERS}
SPY = """
import json, pathlib, sys

def pytest_unconfigure():
    pathlib.Path("modules.json").write_text(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--co"], []], ids=" ".join)
def test_nothing_heavy_is_imported(
    arguments: list[str], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(SPY)
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_subprocess("-p", "pytest_torchlens.plugin", *arguments)
    modules = set(json.loads((pytester.path / "modules.json").read_text(encoding="utf-8")))
    assert "pytest_torchlens.plugin" in modules
    assert modules & (HEAVY | ENGINE) == set()


ENGINE_START = """
import json, sys
import torch
before, path = set(sys.modules), list(sys.path)
import pytest_torchlens.run
print(json.dumps([sorted(set(sys.modules) - before), sys.path == path]))
"""
"""Prints what the plugin's engine loads beside what torch loads by itself, and whether `sys.path` is as it was."""
UNNEEDED = {
    "PIL",
    "distutils",
    "graphviz",
    "jinja2",
    "psutil",
    "pytest_torchlens.draw",
    "pytest_torchlens.plugin",
    "pytest_torchlens.recorder",
    "pytest_torchlens.report",
    "pytest_torchlens.run.worker",
    "setuptools",
    "tabulate",
    "timm",
    "torch._dynamo",
    "torch.utils.benchmark",
    "torch.utils.cpp_extension",
    "torch.utils.flop_counter",
    "torchvision",
    "transformers",
    "triton",
}


def test_the_engine_loads_nothing_that_it_does_not_need_yet() -> None:
    done = subprocess.run([sys.executable, "-c", ENGINE_START], capture_output=True, text=True, check=True)
    loaded, same_path = json.loads(done.stdout)
    assert "pytest_torchlens.run" in loaded
    assert set(loaded) & UNNEEDED == set()
    assert same_path
    assert done.stderr == ""


MISSING_OPERATION = """
import sys
import torch
from pytest_torchlens.validate import validate

class Hides(torch.nn.Module):
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            y = x * 2
        return y + x

completeness = validate(Hides(), (torch.ones(2),)).verdict.part("completeness")
print(completeness.status.value, completeness.failures[0].message, "torch._dynamo" in sys.modules, sep="|")
"""
"""Prints what completeness says of an operation that no function mode sees, and whether the compiler was loaded."""


def test_the_dispatcher_is_watched_without_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING_OPERATION], capture_output=True, text=True, check=True)
    status, message, is_loaded = done.stdout.strip().split("|")
    assert (status, is_loaded) == ("failed", "False")
    assert "aten::mul" in message
