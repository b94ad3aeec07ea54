"""Twenty wrong kernels of PyTorch's own, beneath the recorder and in every dtype: no mode of comparison excuses one."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

from pytest_torchlens.baseline.snapshot_file import function_of

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="PyTorch before 2.9 has no get_kernel")

FUNCTION_OF_KERNEL = {
    "native_batch_norm": "batchnorm",
    "native_layer_norm": "layernorm",
    "native_group_norm": "groupnorm",
    "convolution": "conv2d",
    "avg_pool2d": "avgpool2d",
    "upsample_bilinear2d": "interpolate",
    "gelu": "gelu",
    "silu": "silu",
    "hardswish": "hardswish",
    "leaky_relu": "leakyrelu",
    "softplus": "softplus",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "exp": "exp",
    "rsqrt": "rsqrt",
    "cumsum": "cumsum",
    "_softmax": "softmax",
    "_log_softmax": "logsoftmax",
    "addmm": "linear",
    "bmm": "bmm",
}
MODELS = """
import json
import pathlib

import torch
from torch import nn
from torch.nn import functional as F


class Chain(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.batch, self.group = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.layer, self.linear = nn.LayerNorm(size), nn.Linear(size, size)

    def forward(self, x):
        for step in self.steps():
            x = step(x)
        return x

    def steps(self):
        yield from (self.conv, self.batch, F.gelu, self.group, F.silu, F.hardswish, self.layer, F.leaky_relu)
        yield from (lambda t: F.avg_pool2d(t, 2), lambda t: F.interpolate(t, scale_factor=2, mode="bilinear"))
        yield from (F.softplus, torch.rsqrt, torch.sigmoid, torch.tanh, torch.exp, lambda t: t.cumsum(-1))
        yield from (lambda t: t.flatten(0, 2), self.linear, lambda t: F.softmax(t, -1), lambda t: F.log_softmax(t, -1))
        yield lambda t: torch.bmm(t.view(-1, 8, 8), t.view(-1, 8, 8).mT)


class Branches(Chain):
    def forward(self, x):
        *steps, flat, linear, softmax, log_softmax, bmm = self.steps()
        positive = x.abs() + 0.5
        rows = flat(positive)
        return [step(positive) for step in steps], [step(rows) for step in (linear, softmax, log_softmax, bmm)]


class Twice(Chain):
    def forward(self, x):
        return super().forward(super().forward(x).reshape(x.shape).abs() + 0.1)


def zoo():
    seeded = json.loads(pathlib.Path(__file__).with_name("kernels.json").read_text())
    models = {"chain": Chain, "branches": Branches, "twice": Twice}
    return {f"{name}-{fault}": models[name] for name in models for fault in seeded}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults:
  input: {shape: [8, 4, 8, 8]}
"""
CONFTEST = """
import json, pathlib, pytest, torch

FAULTS = [
    lambda t: t * (1 + 2**-9),
    lambda t: t + t.abs().max() * 2**-9,
    lambda t: torch.cat([t[:1], t[:-1]]),
    lambda t: torch.where(torch.arange(t.numel()).view(t.shape) == 3, t + t.abs().max() / 8, t),
]
SEEDED = json.loads(pathlib.Path(__file__).with_name("zoo").joinpath("kernels.json").read_text())


def replaced(library, name, fault):
    sound = torch.library.get_kernel(f"aten::{name}", "CPU")

    def kernel(keys, *args, **kwargs):
        first, *others = result if isinstance(result := sound.call_boxed(keys, *args, **kwargs), tuple) else (result,)
        wrong = fault(first).contiguous()
        return (wrong, *others) if others else wrong

    library.impl(name, kernel, "CPU", with_keyset=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    library = torch.library.Library("aten", "IMPL")
    if not item.config.getoption("lens_update"):
        for place, name in enumerate(SEEDED[item.name.partition("-")[2]]):
            replaced(library, name, FAULTS[(place + len(name)) % len(FAULTS)])
    try:
        return (yield)
    finally:
        library._destroy()


def pytest_runtest_teardown(item):
    from pytest_torchlens.records import to_json

    pathlib.Path(f"{item.name}.json").write_text(to_json(item.report.comparison))
"""
MODES = {"numbers": (), "activations": ("--lens-keep=activations",), "against": (f"--lens-against={sys.executable}",)}


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    folder = pytester.mkdir("zoo")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "net.yaml").write_text(ZOO, encoding="utf-8")
    pytester.makeconftest(CONFTEST)
    return pytester


def compared(project: pytest.Pytester, mode: str, faults: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Return the comparison of each model under each fault, which is some wrong kernels, with its sound self."""
    (project.path / "zoo" / "kernels.json").write_text(json.dumps(faults))
    command = ("zoo/net.yaml", "--lens-validate", "--lens-parts=replay", "--lens-no-isolate", *MODES[mode])
    if mode != "against":
        project.runpytest_inprocess(*command, "--lens-update=all").assert_outcomes(passed=3 * len(faults))
    project.runpytest_inprocess(*command).assert_outcomes(failed=3 * len(faults))
    return {path.stem: json.loads(path.read_text()) for path in project.path.glob("*-*.json")}


def accused(comparison: dict[str, Any]) -> set[str]:
    """Return the functions that a comparison says are wrong by themselves."""
    own = [found for found in comparison["findings"] if found["change"] == "regression"]
    return {function_of(found["operation"]) for found in own} - {"output"}


FEW = ("native_batch_norm", "addmm", "_softmax")
KERNELS = [pytest.param(FEW, id="few"), pytest.param((*FUNCTION_OF_KERNEL,), id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_wrong_kernel_is_a_regression_at_its_operation(project: pytest.Pytester, kernels: tuple[str, ...], mode: str):
    """Each kernel by itself; another interpreter's process has PyTorch's own ones: a conftest is pytest's alone."""
    every = compared(project, mode, {kernel: [kernel] for kernel in kernels})
    found = {name: (accused(comparison), comparison["fails"]) for name, comparison in every.items()}
    expected = {
        f"{model}-{kernel}": ({FUNCTION_OF_KERNEL[kernel]}, True)
        for model in ("chain", "branches", "twice")
        for kernel in kernels
    }
    assert found == expected


@pytest.mark.slow
def test_ten_wrong_kernels_at_once_are_told_against_a_sound_interpreter(project: pytest.Pytester):
    halves = {f"half{first}": list(FUNCTION_OF_KERNEL)[first::2] for first in range(2)}
    for name, found in compared(project, "against", halves).items():
        assert accused(found) == {FUNCTION_OF_KERNEL[kernel] for kernel in halves[name.partition("-")[2]]}, name
        assert found["fails"], name
