from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import ConditionError
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.records import Change
from pytest_torchlens.records import OutputsComparison
from tests.baseline.samples import Small
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.samples import snapshot_of
from tests.baseline.samples import tampered_snapshot

X = an_input(2, 3, 8, 8)


def _scaled(factor):
    return lambda func, args, kwargs: func(*args, **kwargs) * factor


def _with_one(value):
    def tamper(func, args, kwargs):
        out = func(*args, **kwargs).clone()
        out.view(-1)[7] = value
        return out

    return tamper


def _strided(func, args, kwargs):
    return func(*args, **kwargs).contiguous(memory_format=torch.channels_last)


TAMPERED = {
    "a few eps": (_scaled(1 + 2**-21), Change.LOCAL_CHANGE, False),
    "a thousandth": (_scaled(1.001), Change.REGRESSION, True),
    "one element": (_with_one(9.0), Change.REGRESSION, True),
    "NaN": (_with_one(float("nan")), Change.NAN_CHANGE, True),
    "infinite": (_with_one(float("inf")), Change.NAN_CHANGE, True),
    "strides": (_strided, Change.META_CHANGE, True),
}


@pytest.mark.parametrize("what", TAMPERED)
@pytest.mark.parametrize("operation", ["conv/conv2d", "act/gelu"])
def test_a_changed_kernel_is_found_and_no_other_is_accused(what, operation):
    tamper, change, fails = TAMPERED[what]
    model = filled(Small())
    found = compare(snapshot_of(model, X), tampered_snapshot(model, X, operation, tamper))
    assert (found.verdict, found.fails) == (change, fails)
    (finding,) = found.findings
    assert (finding.operation, finding.change) == (operation, change)
    assert finding.source_line


class SmallPart(nn.Module):
    """Returns a view of a result's smallest values."""

    def forward(self, x):
        return torch.cat([x * 1e4, x * 1e-2]).neg()[len(x) :]


def test_an_output_that_is_a_view_is_judged_by_its_own_size_and_no_view_is_accused():
    def shifted(func, args, kwargs):
        return func(*args, **kwargs) + 5e-3

    found = compare(snapshot_of(SmallPart(), X), tampered_snapshot(SmallPart(), X, "/neg", shifted))
    accused = {finding.operation: finding.change for finding in found.findings}
    assert accused == {"/neg": Change.LOCAL_CHANGE, "/output": Change.REGRESSION}
    assert found.outputs.error == pytest.approx(1 / 3, rel=0.1)


def test_the_size_of_an_error_is_told():
    model = filled(Small())
    found = compare(snapshot_of(model, X), tampered_snapshot(model, X, "act/gelu", _scaled(1.01)))
    assert found.first is not None
    assert found.first.error == pytest.approx(0.01, rel=0.1)
    assert found.first.nrms == pytest.approx(0.01, rel=0.4)
    assert [step.operation for step in (found.growth[0], found.growth[-1])] == ["act/gelu", "/output"]


def test_a_limit_asked_for_holds_where_it_is_asked_for():
    model = filled(Small())
    before, after = snapshot_of(model, X), tampered_snapshot(model, X, "act/gelu", _scaled(1.001))
    for text, verdict in (
        ("own:1e-2,graph:1,output:1", Change.LOCAL_CHANGE),
        ("own:1e-2@act,graph:1,output:1", Change.LOCAL_CHANGE),
        ("own:1e-2@gelu,graph:1,output:1", Change.LOCAL_CHANGE),
        ("own:1e-2@conv2d,graph:1,output:1", Change.REGRESSION),
    ):
        assert compare(before, after, Conditions.of([text])).verdict is verdict, text


def test_what_fails_is_what_was_asked_for():
    model = filled(Small())
    before, after = snapshot_of(model, X), tampered_snapshot(model, X, "act/gelu", _scaled(1 + 2**-21))
    for text, fails in (
        ("", False),
        ("local-change", True),
        ("local-change@act", True),
        ("local-change@conv*", False),
        ("none", False),
    ):
        assert compare(before, after, Conditions.of([text])).fails is fails, text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("structur", "structure"),
        ("own", "expected a number from 0, as in own:1e-5, got 'own'"),
        ("own:x", "own:1e-5"),
        ("own:-1", "own:1e-5"),
        ("peak:fast", r"peak:\+10%"),
        ("structure:1", "expected 'structure' without a value, got 'structure:1'"),
        ("", ""),
    ],
)
def test_a_condition_that_is_none_is_explained(text, message):
    if not text:
        assert Conditions.of([text]) == Conditions()
        return
    with pytest.raises(ConditionError, match=message):
        Conditions.of([text])


class Rounding(nn.Module):
    def forward(self, x):
        x = x * 3
        return torch.argmax(x + 0, dim=-1), (x * 1).round()


def test_a_choice_that_flips_on_drift_is_no_regression():
    x = torch.tensor([[0.5, 0.5 - 1e-9, 1.5]])
    model = Rounding()
    found = compare(snapshot_of(model, x), tampered_snapshot(model, x, "/mul", _scaled(1 + 2**-22)))
    assert {finding.change for finding in found.findings} == {Change.LOCAL_CHANGE, Change.DECISION_FLIP}
    assert found.verdict is Change.DECISION_FLIP
    assert not found.fails


class Chosen(nn.Module):
    def __init__(self, choose):
        super().__init__()
        self.choose = choose

    def forward(self, x):
        return self.choose(x * 3)


@pytest.mark.parametrize(
    ("choose", "change"),
    [
        (torch.msort, Change.LOCAL_CHANGE),
        (lambda t: torch.max_pool1d(t, 2), Change.LOCAL_CHANGE),
        (lambda t: F.interpolate(t, scale_factor=2.0, mode="linear"), Change.LOCAL_CHANGE),
        (lambda t: torch.where(t > 0, t, -t), Change.LOCAL_CHANGE),
        (torch.argsort, Change.DECISION_FLIP),
        (lambda t: t.ceil(), Change.DECISION_FLIP),
    ],
    ids=["sort", "max pool", "linear", "where", "argsort", "ceil"],
)
def test_of_functions_that_choose_only_choices_flip_and_values_follow(choose, change):
    x = torch.tensor([[[0.5, 0.5 - 2**-25, 1.0, 1.5]]])  # times 3, two that nearly tie
    model = Chosen(choose)
    before = snapshot_of(model, x)
    drifted = tampered_snapshot(model, x, "/mul", lambda func, args, kwargs: func(*args, **kwargs) + NEAR)
    assert compare(before, drifted).verdict is change
    wrong = tampered_snapshot(model, x, before.steps[-2].id, _scaled(1.5) if change is Change.LOCAL_CHANGE else _plus_1)
    assert compare(before, wrong).verdict is Change.REGRESSION


NEAR = torch.tensor([-(2.0**-22), 2.0**-22, 2.0**-22, 0.0])


def _plus_1(func, args, kwargs):
    return func(*args, **kwargs) + 1


class Two(nn.Module):
    """A sign that flips, and an output of its own."""

    def __init__(self, packed=list):
        super().__init__()
        self.packed = packed

    def forward(self, x):
        x = x * 1
        return self.packed([x.round() * 2, x + 1])


def test_the_outputs_are_judged_behind_a_flip():
    x = torch.tensor([2.5, 1.0])
    before, after = snapshot_of(Two(), x), tampered_snapshot(Two(), x, "/mul", _scaled(1 + 2**-22))
    found = compare(before, after)
    assert (found.verdict, found.fails) == (Change.DECISION_FLIP, False)
    assert found.outputs is not None
    assert (found.outputs.within, found.outputs.operation, found.outputs.error) == (
        False,
        "/output",
        pytest.approx(1 / 3),
    )
    for text, fails in (("outputs", True), ("output:1", False), ("output:0.1", True), ("none,output:0.1", True)):
        assert compare(before, after, Conditions.of([text])).fails is fails, text


def test_outputs_that_cannot_be_compared_are_not_those_of_the_baseline():
    x = torch.tensor([0.5, 1.0])
    before, after = snapshot_of(Two(), x), snapshot_of(Two(tuple), x)
    assert compare(before, before).outputs == OutputsComparison(same=True, within=True, operation="/output")
    found = compare(before, after, Conditions.of(["outputs"]))
    assert (found.fails, found.outputs) == (True, OutputsComparison(reason="another object is returned"))


def test_outputs_without_numbers_are_compared_by_object_shape_and_dtype():
    x = torch.tensor([0.5, 1.0])
    before, same, cut = snapshot_of(Two(), x), snapshot_of(Two(), x), snapshot_of(Two(), x[:1])
    before = dataclasses.replace(before, measured={})
    outputs = Conditions.of(["outputs"])
    assert (compare(before, same, outputs).fails, compare(before, same, outputs).outputs) == (False, None)
    found = compare(before, cut, outputs)
    assert found.fails
    assert found.outputs is not None
    assert found.outputs.reason == "shape (2,) → (1,)"
    assert compare(before, snapshot_of(Two(tuple), x), outputs).fails


class Steep(nn.Module):
    def forward(self, x):
        return torch.exp(200 * torch.tanh(x))


def test_an_output_out_of_tolerance_fails_though_every_operation_is_within_its_own():
    x = an_input(64)
    found = compare(snapshot_of(Steep(), x), tampered_snapshot(Steep(), x, "/tanh", _scaled(1 + 2**-20)))
    assert found.verdict is Change.REGRESSION
    assert found.fails


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


def test_random_numbers_without_a_seed_are_unstable_and_fail_nothing():
    found = compare(snapshot_of(Noisy(), X, seed=None), snapshot_of(Noisy(), X, seed=None))
    assert found.verdict is Change.UNSTABLE
    assert not found.fails
    assert [finding.operation for finding in found.findings] == ["/randlike"]


def _elsewhere(snapshot, **facts):
    (block,) = snapshot.measured.values()
    environment = dataclasses.replace(block.environment, **facts)
    return dataclasses.replace(
        snapshot, measured={"cpu other": EnvironmentNumbers(environment=environment, numbers=block.numbers)}
    )


def test_on_another_machine_small_differences_are_drift_and_the_axis_is_named():
    model = filled(Small())
    before = _elsewhere(snapshot_of(model, X), cpu_capability="OTHER", torch="2.0.0")
    found = compare(before, tampered_snapshot(model, X, "conv/conv2d", _scaled(1 + 2**-21)))
    assert found.verdict is Change.DRIFT
    assert found.axes[0].startswith("CPU capability OTHER → ")
    assert found.axes[1].startswith("torch 2.0.0 → ")


def test_without_numbers_of_such_a_device_the_structure_is_compared():
    model = filled(Small())
    before = snapshot_of(model, X)
    (block,) = before.measured.values()
    on_a_gpu = dataclasses.replace(block, environment=dataclasses.replace(block.environment, device="cuda"))
    elsewhere = dataclasses.replace(before, measured={"cuda 1 thread": on_a_gpu})
    found = compare(elsewhere, before)
    assert found.verdict is Change.ENVIRONMENT
    assert "numbers were not compared" in found.notes[0]


class Branching(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x * 3


def test_another_branch_is_named():
    found = compare(snapshot_of(Branching(), X.abs()), snapshot_of(Branching(), -X.abs()))
    assert any("other branch taken" in finding.message for finding in found.findings)


def test_two_saved_runs_are_compared_without_torch(tmp_path):
    model = filled(Small())
    for name, snapshot in (
        ("a", snapshot_of(model, X)),
        ("b", tampered_snapshot(model, X, "act/gelu", _scaled(1.01))),
    ):
        (tmp_path / f"{name}.json").write_text(to_text(snapshot), encoding="utf-8")
    program = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.snapshot_file import read
print(compare(read(Path("a.json")), read(Path("b.json"))).verdict.value)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "regression"
