"""The fixture ``lens_edit``, and what a CI log and a page show of edited passes."""

from __future__ import annotations

import pytest

TESTS = """
import pytest
import pytest_torchlens as tl
import torch
from torch import nn

torch.manual_seed(0)
MODEL, X = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.rand(2, 4)
"""


def test_lens_edit_edits_models_and_histories(pytester: pytest.Pytester):
    pytester.makepyfile(
        TESTS
        + """
class Two(nn.Module):
    def forward(self, x, scale):
        return torch.tanh(x) * scale

def test_model(lens_edit):
    edited = lens_edit(MODEL, X, {"relu_1": 0.0}, live=True)
    assert torch.equal(edited["output_1"].tensor_contents[0], MODEL[2].bias)
    assert torch.equal(edited.original["output_1"].tensor_contents, MODEL(X))
    tl.assert_effect(edited, at_least=0.01)

def test_parameters_alone(lens_edit):
    assert lens_edit(MODEL, X, parameters={"2.bias": 0.0}).changed_by.keys() == {"linear_2_3", "output_1_4"}

def test_history(lens_edit, lens_trace):
    history = lens_trace(MODEL, X)
    assert lens_edit(history, {"relu_1": 0.0}).original is history
    with pytest.raises(TypeError, match="a history is edited as it was recorded"):
        lens_edit(history, X, {"relu_1": 0.0})

def test_loaded(lens_edit, tmp_path):
    lens_edit(MODEL, X, {"relu_1": 0.0}).original.save(tmp_path / "pass")
    with pytest.raises(tl.NotReplayableError, match="must be given to run Sequential again: loaded.edit"):
        lens_edit(tl.load(tmp_path / "pass"), {"relu_1": 0.0})

def test_inputs(lens_edit):
    edited = lens_edit(Two(), [X], {"tanh_1": 1.0}, input_kwargs={"scale": torch.ones(4) * 3}, random_seed=1)
    assert torch.equal(edited["output_1"].tensor_contents, torch.full((2, 4), 3.0))
    assert edited.random_seed_used == 1

def test_mistakes(lens_edit):
    with pytest.raises(tl.LookupKeyError, match="no layer 'rellu_1'"):
        lens_edit(MODEL, X, {"rellu_1": 0.0})
    with pytest.raises(ValueError, match="expected one edit or more"):
        lens_edit(MODEL, X)
"""
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=6)


def test_a_failed_effect_is_readable_in_a_log(pytester: pytest.Pytester):
    pytester.makepyfile(
        TESTS
        + """
def test_it(lens_edit):
    tl.assert_effect(lens_edit(MODEL, X, {"linear_1": lambda t: t - 100 * t.abs() - 1}), at_least=100)

def test_nothing(lens_edit):
    history = lens_edit(nn.Sequential(MODEL[0], nn.Hardtanh(-9, -8)), X, {"linear_1": 0.0})
    tl.assert_effect(history, at_least=0.01)
"""
    )
    result = pytester.runpytest_inprocess("--lens-validate")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "E * AssertionError: edit of linear_1_1 in Sequential: changed the outputs by up to *%, wanted*10,000 %",
            "E *edited:",
            "E *linear_1_1 ← a function",
            "E *in 0 (Linear)",
            "E *outputs:",
            "E *output_1_4: changed by *",
            "E * AssertionError: edit of linear_1_1 in Sequential: changed the outputs by up to 0 %, wanted*1 %",
            "E *why: the last value behind the edit that changed is linear_1_1 (changed by 100 %)",
            "E *hardtanh_1_2, which reads it, gave the values that it gave without the edit",
        ],
        consecutive=False,
    )
    result.stdout.no_fnmatch_line("*effect.py*")


def test_the_page_of_an_edited_pass_says_so(pytester: pytest.Pytester):
    pytester.makepyfile(
        TESTS
        + """
def test_it(lens_edit, lens_report):
    lens_report(lens_edit(MODEL, X, {"relu_1": 0.0}), name="ablated")
    lens_report(MODEL, X, name="plain")
"""
    )
    pytester.runpytest_inprocess("--lens-report=out").assert_outcomes(passed=1)
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (pytester.path / "out").rglob("*.html")}
    edited = next(text for name, text in pages.items() if "ablated" in name)
    plain = next(text for name, text in pages.items() if "plain" in name)
    assert "<li>relu_1_2 ← 0.0</li>" in edited
    assert "edited: 0.0; changed by 100 %" in edited
    assert '<i class="swatch oval edited">' in edited
    assert 'id="edits"' not in plain
    assert "swatch oval edited" not in plain
