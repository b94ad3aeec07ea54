"""A project whose kernels of PyTorch's own are replaced, beneath the recorder."""

from __future__ import annotations

import json
from typing import Any

import pytest

MODELS = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x):
        x = F.gelu(x)
        x = torch.empty_like(x).copy_(x)  # what was in its memory is nobody's choice
        return F.silu(self.norm(self.mix(x).clone().mul_(2)))


class Steep(nn.Module):
    def forward(self, x):
        return (F.gelu(x / 10000 + 4) / 4).pow(2000)


def zoo():
    return {"net": Net, "steep": Steep}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults:
  input: {shape: [32, 64]}
"""
# Kernels of PyTorch's own, replaced beneath the recorder: each gives its exact result times a factor.
CONFTEST = """
import json, math, pathlib, torch

EXACT = {
    "gelu": lambda x, **_: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}
KERNELS = torch.library.Library("aten", "IMPL")


def replaced(name, error):
    def kernel(x, **options):
        exact = EXACT[name](x.double(), **options)
        return exact if x.dtype is torch.float64 else (exact * (1 + error)).to(x.dtype)
    KERNELS.impl(name, kernel, "CPU")


for name, error in json.loads(pathlib.Path(__file__).with_name("kernels.json").read_text()).items():
    replaced(name, error)


def pytest_runtest_teardown(item):
    from pytest_torchlens.records import to_json

    pathlib.Path("comparison.json").write_text(to_json(item.report.comparison) if hasattr(item, "report") else "")


def pytest_unconfigure():
    KERNELS._destroy()
"""
FINE, ROUGH, WRONG = 0.0, 2.0**-20, 2.0**-10


def make_project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Write models, their zoo and a conftest that replaces kernels."""
    folder = pytester.mkdir("zoo")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "net.yaml").write_text(ZOO, encoding="utf-8")
    (pytester.path / "kernels.json").write_text("{}")
    pytester.makeconftest(CONFTEST)
    return pytester


def compared(
    project: pytest.Pytester, *arguments: str, model: str = "net", **kernels: float
) -> tuple[dict[str, Any], pytest.RunResult]:
    """Run a model with these kernels; return its comparison as JSON has it, and all that pytest said."""
    (project.path / "kernels.json").write_text(json.dumps({"gelu": FINE, "silu": FINE, **kernels}))
    command = (f"zoo/net.yaml::{model}", "--lens-validate", "--lens-parts=replay", *arguments)
    result = project.runpytest_inprocess(*command)
    return json.loads((project.path / "comparison.json").read_text()), result


def accused(comparison: dict[str, Any]) -> dict[str, str]:
    """Return the class of change by operation."""
    return {found["operation"]: found["change"] for found in comparison["findings"]}
