"""Each rule on a model with the fault, and on one without."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_torchlens import get_model_metadata
from pytest_torchlens.audit import MOST_PLACES
from pytest_torchlens.audit import RULES
from pytest_torchlens.audit import ModelFacts
from pytest_torchlens.audit import Subject
from pytest_torchlens.audit import audit
from pytest_torchlens.measure import measure_forward_pass
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Severity
from pytest_torchlens.run.job import activation_statistics
from pytest_torchlens.zoo import Inputs
from tests.draw.samples import Sketch

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Lambda(nn.Module):
    """A layer, and a function of what it gives."""

    def __init__(self, function, **modules):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.function(self, self.layer(x))


def findings(model, x=X, *, measured=False, grad=False):
    """Return what is found in a model, by rule."""
    with torch.set_grad_enabled(grad):
        history = get_model_metadata(model, x).record()
        costs = measure_forward_pass(model, x, passes=1) if measured else None
        statistics = activation_statistics(model, Inputs((x,), {}), None)
    return {it.rule: it for it in audit(Subject(history, statistics, costs, ModelFacts.of(model)))}


def uses_dropout(self, x):
    return F.dropout(x)


def nan_bias(self, x):
    return x.sqrt() * 2


def masked(self, x):
    mask = torch.full((8, 8), float("-inf")).triu(1)
    return torch.softmax(x @ x.T @ torch.ones(4, 8) + mask[:4], -1)


def masked_by_type(self, x):
    return torch.softmax(x.masked_fill(x < 0, torch.finfo(x.dtype).min), -1)


def overflows(self, x):
    return (x.double() * 1e30).float() * 1e30


def frees(self, x):
    x.exp().sum()  # for nothing
    return x


def looks(self, x):
    return x.reshape(x[0].shape[0], -1)


def branches(self, x):
    return x if x.sum() > 0 else -x


def asserts(self, x):
    assert x.sum() < 1e9
    return x


def twice(self, x):
    return torch.tanh(x) + torch.tanh(x)


def thrice_different(self, x):
    return torch.tanh(x) + torch.tanh(x + 1)


def doubles(self, x):
    return x * torch.from_numpy(np.ones(8))


def keeps_type(self, x):
    return x * torch.from_numpy(np.ones(8)).to(x.dtype)


def mixes(self, x):
    return x * torch.ones(8, dtype=torch.bfloat16)


def detaches(self, x):
    return self.head(x.detach())


def goes_on(self, x):
    return self.head(x)


def reads_weight(self, x):
    return F.linear(x, self.head.weight, self.head.bias)


def head():
    return {"head": nn.Linear(8, 8)}


def large_copy(self, x):
    return x.repeat(64, 128).T.contiguous()


def large_reshape(self, x):
    return x.repeat(64, 128).T.reshape(-1)


def large_view(self, x):
    return x.repeat(64, 128).contiguous().reshape(-1)


def fills_in_parts(self, x):
    filled = torch.zeros_like(x)
    for chosen in (x > 0, x <= 0):
        filled[chosen] = filled[chosen] + x[chosen]
    return filled


FAULTS = [
    ("not-a-number", nan_bias),
    ("infinite", overflows),
    ("constant", lambda self, x: x * 0),
    ("dead-relu", lambda self, x: F.relu(x - x.max() + 1e-6)),
    ("large-activation", lambda self, x: x * 1e9),
    ("train-mode", uses_dropout),
    ("random", lambda self, x: x + torch.rand(8)),
    ("no-effect", frees),
    ("float64", doubles),
    ("mixed-types", mixes),
    ("duplicate", twice),
    ("data-dependent-branch", branches),
    ("value-in-python", lambda self, x: x * x.sum().item()),
    ("copy", large_copy),
]
CLEAN = [
    ("not-a-number", lambda self, x: x.abs().sqrt() * 2),
    ("infinite", masked),
    ("constant", lambda self, x: x * 2),
    ("constant", lambda self, x: x + torch.zeros(8)),
    ("constant", fills_in_parts),
    ("dead-relu", lambda self, x: F.relu(x)),
    ("large-activation", masked_by_type),
    ("large-activation", lambda self, x: x * 100),
    ("train-mode", lambda self, x: F.dropout(x, training=self.training)),
    ("random", lambda self, x: x + 1),
    ("no-effect", looks),
    ("no-effect", lambda self, x: x.max(1).values),
    ("no-effect", branches),
    ("no-effect", lambda self, x: x * x.sum().item()),
    ("float64", keeps_type),
    ("mixed-types", lambda self, x: x * torch.tensor(2.0, dtype=torch.float64)),
    ("duplicate", thrice_different),
    ("duplicate", lambda self, x: F.dropout(x, 0.5, True) + F.dropout(x, 0.5, True)),
    ("data-dependent-branch", asserts),
    ("data-dependent-branch", lambda self, x: torch.where(x > 0, x, -x)),
    ("value-in-python", branches),
    ("copy", large_view),
]


@pytest.mark.parametrize(("rule", "function"), FAULTS, ids=[name for name, _ in FAULTS])
def test_a_fault_is_found_at_its_line(rule, function):
    found = findings(Lambda(function).eval())[rule]
    place = found.places[0]
    assert found.num_places == len(found.places) >= 1
    assert place.source_line.rpartition(":")[0] == __file__
    first, last = function.__code__.co_firstlineno, max(line for *_, line in function.__code__.co_lines() if line)
    assert first <= int(place.source_line.rpartition(":")[2].partition(",")[0]) <= last
    assert found.meaning
    assert found.advice
    assert place.detail


@pytest.mark.parametrize(("rule", "function"), CLEAN, ids=[f"{name}-{place}" for place, (name, _) in enumerate(CLEAN)])
def test_what_is_no_fault_is_not_found(rule, function):
    assert rule not in findings(Lambda(function).eval())


def test_a_plain_model_has_no_finding():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    assert findings(model.eval()) == {}


def test_only_where_a_fault_begins_is_named():
    nan = findings(Lambda(nan_bias).eval())["not-a-number"]
    assert [place.operation for place in nan.places] == ["sqrt_1_2"]


@pytest.mark.parametrize(
    ("function", "detail"),
    [
        (nan_bias, "no activation it was made from has any"),
        (lambda self, x: x.abs() * float("nan"), "NaN is among its arguments"),
        (lambda self, x: x.abs() * np.float32("nan"), "NaN is among its arguments"),
        (lambda self, x: x.sqrt().nan_to_num(nan=float("nan")), "no activation it was made from has any"),
        (lambda self, x: x + torch.full((8,), float("nan")), "NaN is among its arguments"),
        (lambda self, x: F.linear(x, self.weights), "no activation it was made from has any; its parameters (weights)"),
    ],
    ids=["computed", "float", "float of NumPy", "replaced", "full", "parameter"],
)
def test_where_the_first_nan_may_come_from(function, detail):
    model = Lambda(function)
    model.weights = nn.Parameter(torch.full((8, 8), float("nan")))
    (place,) = findings(model.eval())["not-a-number"].places
    assert detail in place.detail


@pytest.mark.parametrize("part", ["dropout", "norm"])
def test_a_part_left_in_train_mode(part):
    model = Lambda(lambda self, x: self.dropout(self.norm(x)), dropout=nn.Dropout(), norm=nn.BatchNorm1d(8)).eval()
    assert "train-mode" not in findings(model)
    model.get_submodule(part).train()
    (place,) = findings(model)["train-mode"].places
    assert place.module == part
    assert f"module {part} is in train mode" in place.detail


def test_train_mode_is_no_fault_in_training_nor_where_a_norm_keeps_no_statistics():
    assert not {"train-mode", "random"} & set(findings(nn.Sequential(nn.Linear(8, 8), nn.Dropout()).train(), grad=True))
    assert "train-mode" not in findings(nn.Sequential(nn.BatchNorm1d(8, track_running_stats=False)).eval())


def test_modules_and_parameters_that_are_never_used():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(8, 8)
            self.extra = nn.Parameter(torch.ones(3))
            self.aux = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
            self.inner = nn.ModuleDict({"one": nn.Linear(8, 8), "other": nn.Linear(8, 8)})

        def forward(self, x):
            return self.inner["one"](self.used(x))

    found = findings(Net().eval())
    assert [(it.module, it.detail) for it in found["unused-module"].places] == [
        ("aux", "4 parameters of 90 elements"),
        ("inner.other", "2 parameters of 72 elements"),
    ]
    assert [(it.module, it.detail) for it in found["unused-parameter"].places] == [("extra", "3 elements")]
    assert f"{__file__}:" in found["unused-module"].places[0].source_line


@pytest.mark.parametrize("function", [goes_on, reads_weight])
def test_parameters_that_are_used_by_hand_or_tied_are_used(function):
    model = Lambda(function, **head())
    model.head.weight = model.layer.weight
    assert findings(model.eval()) == {}


def test_parameters_that_no_gradient_reaches():
    found = findings(Lambda(detaches, **head()).eval())
    assert [it.detail for it in found["unreached-parameter"].places] == ["layer.weight, layer.bias"]
    assert "unreached-parameter" not in findings(Lambda(goes_on, **head()).eval())


@pytest.mark.parametrize("grad", [False, True])
def test_gradients_reach_complex_parameters(grad):
    class Filtered(nn.Module):
        def __init__(self):
            super().__init__()
            self.filter = nn.Parameter(torch.ones(5, dtype=torch.complex64))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=8)

    class Detached(Filtered):
        def forward(self, x):
            return super().forward(x).detach()

    class ComplexOutput(Filtered):
        def forward(self, x):
            return torch.fft.rfft(x) * self.filter

    assert "unreached-parameter" not in findings(Filtered(), grad=grad)
    assert "unreached-parameter" not in findings(ComplexOutput(), grad=grad)
    assert "unreached-parameter" in findings(Detached(), grad=grad)


def test_no_grad_within_a_pass_with_gradients():
    class Net(Lambda):
        def forward(self, x):
            with torch.no_grad():
                x = self.layer(x)
            return self.head(x)

    assert "unreached-parameter" in findings(Net(None, **head()), grad=True)
    assert "unreached-parameter" not in findings(Lambda(goes_on, **head()), grad=True)


def test_frozen_parameters_beside_others():
    model = Lambda(goes_on, **head()).eval()
    model.layer.requires_grad_(False)
    (place,) = findings(model)["frozen-parameter"].places
    assert (place.module, place.detail) == ("layer", "2 of its parameters, 72 elements")
    assert "frozen-parameter" not in findings(model.requires_grad_(False))
    assert "frozen-parameter" not in findings(model.requires_grad_(True))


def test_reshape_that_copies_is_known_where_bytes_were_counted():
    assert "copy" in findings(Lambda(large_reshape).eval(), measured=True)
    assert "copy" not in findings(Lambda(large_view).eval(), measured=True)


def test_kernels_without_an_order_are_told_on_a_gpu_alone():
    def found(device):
        net = Sketch("Net")
        x = net.op("input")
        net.op("output", net.op("cumsum", x, tensor_device=device, is_output_ancestor=True))
        return [it.rule for it in audit(Subject(net.record()))]

    assert found("cuda:0") == ["nondeterministic-kernel"]
    assert found("cpu") == []


def test_many_places_are_counted_and_the_first_named():
    def function(self, x):
        for factor in range(MOST_PLACES + 5):
            (x * factor).exp()
        return x

    found = findings(Lambda(function).eval())["no-effect"]
    assert (len(found.places), found.num_places) == (MOST_PLACES, MOST_PLACES + 5)


def test_what_matters_most_comes_first():
    def function(self, x):
        x.exp()
        return (torch.tanh(x) + torch.tanh(x)).sqrt()

    found = [it.severity for it in findings(Lambda(function).eval()).values()]
    assert found == sorted(found, key=list(Severity).index)
    assert {*found} == {*Severity}


def test_a_record_alone_is_judged_as_far_as_it_goes():
    history = get_model_metadata(Lambda(twice).eval(), X).record()
    assert [it.rule for it in audit(Subject(history))] == ["duplicate"]
    assert audit(Subject(HistoryRecord(model_name="Empty"))) == ()


def test_rules_have_names_of_their_own_and_words():
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert all(getattr(rule, field.name) for field in dataclasses.fields(rule))


def test_the_documentation_names_every_rule():
    text = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
    for severity in Severity:
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {severity.value} |"))
        assert set(re.findall(r"`([\w-]+)`", row)) == {rule.name for rule in RULES if rule.severity is severity}


def test_a_rule_that_fails_is_said_and_costs_no_other(monkeypatch):
    def broken(subject):
        raise KeyError("conv_1")

    monkeypatch.setattr("pytest_torchlens.audit.RULES", (dataclasses.replace(RULES[0], find=broken), *RULES[1:]))
    found = findings(Lambda(lambda self, x: x, spare=nn.Linear(8, 8)))
    assert found[RULES[0].name].meaning == "Judging this rule failed: KeyError: 'conv_1'. Of the model it says nothing."
    assert len(found) > 1
