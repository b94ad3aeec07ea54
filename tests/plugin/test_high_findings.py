"""An output that is not finite is a finding of high severity in a model that a test calls, too."""

from __future__ import annotations

import json

import pytest

MODELS = """
import pytest
import torch
from torch import nn

X = torch.ones(2, 4)
GLOBAL = torch.full((4,), float("nan"))
ARRAY = GLOBAL.numpy().copy()

class Logs(nn.Module):
    def forward(self, x):
        y = x - 2
        return y.log().relu()

class Overflows(nn.Module):
    def forward(self, x):
        return x * 1e30 * 1e30

class Masked(nn.Module):
    def forward(self, x):
        return x.masked_fill(x > 0, float("-inf"))

class AddsMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([0, float("-inf"), 0, 0]))

    def forward(self, x):
        return x + self.mask

class AddsGlobal(nn.Module):
    def forward(self, x):
        return x + GLOBAL

class AddsArray(nn.Module):
    def forward(self, x):
        return x + torch.from_numpy(ARRAY)

class Passes(nn.Module):
    def forward(self, x):
        return x * 2

class Frees(nn.Module):
    def forward(self, x):
        y = x * 2
        y.untyped_storage().resize_(0)
        return y

class Bytes(nn.Module):
    def forward(self, x):
        return x.log().to(torch.float8_e4m3fn)

class Noted(torch.Tensor):
    names = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.names.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {{}})

def test_it():
    {name}()({x})
"""
BAD_INPUT = "X.log() - X.log() / 0"


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Return what runs a test that calls one model."""

    def run(name: str, *options: str, x: str = "X") -> pytest.RunResult:
        pytester.makepyfile(test_them=MODELS.format(name=name, x=x))
        return pytester.runpytest_inprocess("--lens-validate", *options)

    return run


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("Logs", "An activation holds NaN, at 1 place: log_1_2, *test_them.py:12, in forward, *"),
        ("Overflows", "*infinit*: mul_2_2, *"),
    ],
)
def test_it_is_told_and_fails_if_it_is_to(run, name, finding):
    result = run(name)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["1 outermost module call in 1 test: 1 proven; 1 high finding", f"high: 1 call: {finding}"]
    )
    result = run(name, "--lens-fail-on=high")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*lens: {name}: high: {finding}"])


@pytest.mark.parametrize("parts", ["replay", "invariants"])
@pytest.mark.parametrize(
    ("name", "x"),
    [
        *(("Passes", "X"), ("Masked", "X"), ("AddsMask", "X"), ("Passes", BAD_INPUT), ("Bytes", "X")),
        *(("AddsGlobal", "X"), ("AddsArray", "X")),
    ],
)
def test_finite_outputs_written_masks_and_what_a_test_hands_in_are_no_findings(run, name, x, parts):
    result = run(name, "--lens-fail-on=high", f"--lens-parts={parts}", x=x)
    result.assert_outcomes(passed=1)
    assert "please report" not in result.stdout.str()
    assert "high" not in result.stdout.str().partition("lens: models called")[2]


def test_an_output_without_memory_is_not_read(run):
    run("Frees", "--lens-parts=invariants").assert_outcomes(passed=1)  # to read it would end the process


def test_a_tensor_class_of_the_test_sees_its_own_operations_alone(run, pytester):
    pytester.makeconftest("""
def pytest_runtest_teardown(item):
    assert item.module.Noted.names == ["mul"]
""")
    run("Passes", x="X.as_subclass(Noted)").assert_outcomes(passed=1)


def test_a_rule_can_be_ignored(run):
    result = run("Logs", "--lens-fail-on=high", "--lens-ignore=not-a-number")
    result.assert_outcomes(passed=1)
    assert "high finding" not in result.stdout.str()


def test_without_a_replay_the_operation_that_made_the_output_is_named(run):
    run("Logs", "--lens-parts=invariants").stdout.fnmatch_lines(["high: 1 call: *relu_1_3, *"])


def test_it_stands_in_one_line_if_little_is_to_be_said_and_in_the_files(run, pytester):
    result = run("Logs", "-q", "--lens-json=lens.json")
    result.stdout.fnmatch_lines(["lens: 1 outermost module call in 1 test: 1 proven; 1 high finding"])
    (model,) = json.loads((pytester.path / "lens.json").read_text(encoding="utf-8"))["models"]
    assert [one["rule"] for one in model["findings"] if one["severity"] == "high"] == ["not-a-number"]
