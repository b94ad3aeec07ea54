"""How much an edit changes, and the assertion about it."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.edit.differences import relative_change
from tests.edit.samples import Branches
from tests.edit.samples import Bundles
from tests.edit.samples import Loop
from tests.edit.samples import Signed

X = torch.tensor([[1.0, -2.0, 3.0, 0.5]])


@pytest.fixture(name="model", scope="module")
def fixture_model():
    torch.manual_seed(0)
    return Branches()


@pytest.fixture(name="history", scope="module")
def fixture_history(model):
    return tl.log_forward_pass(model, X)


def failure(*args, **kwargs):
    with pytest.raises(AssertionError) as caught:
        tl.assert_effect(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.0], [0.0, 0.0], 1.0),
        ([3.0, 4.0], [3.0, 9.0], 1.0),
        ([3.0, 4.0], [3.0, 4.5], 0.1),
        ([0.0, 0.0], [0.0, 1.0], torch.inf),
        ([torch.nan, 4.0], [torch.nan, 2.0], 0.5),
        ([torch.inf, 4.0], [torch.inf, 2.0], 0.5),
        ([1.0, 4.0], [torch.nan, 4.0], torch.inf),
        ([1.0, 4.0], [1.0, 4.0, 0.0], torch.inf),
        ([True, False], [False, True], 2**0.5),
        ([1 + 1j], [1 - 1j], 2**0.5),
        ([], [], 0.0),
    ],
)
def test_relative_change(before, after, change):
    assert relative_change(torch.tensor(before), torch.tensor(after)) == pytest.approx(change)


def test_relative_change_of_small_and_integer_types_does_not_overflow():
    half = torch.full((70_000,), 60_000.0, dtype=torch.half)
    assert relative_change(half, half / 2) == pytest.approx(0.5)
    assert relative_change(torch.tensor([200], dtype=torch.uint8), torch.tensor([100], dtype=torch.uint8)) == 0.5
    assert relative_change(torch.ones(2).to_sparse(), torch.zeros(2).to_sparse()) == torch.inf


@pytest.mark.parametrize("live", [False, True])
def test_changed_by_has_all_behind_an_edit_and_nothing_else(history, live):
    edited = history.edit({"linear_1": lambda t: t * 3}, live=live)
    assert edited.original is history
    expected = dict.fromkeys(["linear_1_3", "mul_1_7", "output_2_9"], 2.0)
    expected |= dict.fromkeys(["relu_1_5", "add_2_6", "output_1_8"], 0.0)
    small = edited.changed_by.pop("sub_1_4")
    assert edited.changed_by == pytest.approx(expected)
    assert 0 < small < 0.1
    assert history.changed_by == {}
    assert history.edits == ()


def test_edits_of_edges_parameters_and_inputs_are_followed_too(history):
    edge = history.edit({("linear_1", "mul_1"): 0.0})
    assert edge.changed_by == {"mul_1_7": 1.0, "output_2_9": 1.0}
    assert "fc.bias ← 0.0" in map(str, history.edit(parameters={"fc.bias": 0.0}).edits)
    assert next(iter(history.edit(parameters={"fc.bias": 0.0}).changed_by)) == "linear_1_3"
    assert next(iter(history.edit(inputs={"x": X * 2}).changed_by.items())) == ("input_1_0", 1.0)


def test_an_edit_of_an_edit_is_measured_from_the_pass_without_any(history):
    twice = history.edit({"linear_1": lambda t: t * 3}).edit({"mul_1": lambda t: t * 2})
    assert twice.original is history
    assert twice.changed_by["output_2_9"] == pytest.approx(5.0)
    assert [edit.label for edit in twice.edits] == ["linear_1_3", "mul_1_7"]


@pytest.mark.parametrize("first", [False, True], ids=["replay", "live"])
def test_a_live_edit_of_an_edit_makes_both(history, first):
    both = [{"linear_1": lambda t: t + 1}, {"mul_1": lambda t: t * 2, "linear_1": lambda t: t * 3}]
    replayed, live = (history.edit(both[0], live=first).edit(both[1], live=live) for live in (False, True))
    assert torch.equal(live["output_2"].tensor_contents, replayed["output_2"].tensor_contents)
    assert live.original is history
    assert [*map(str, live.edits)] == [*map(str, replayed.edits)]
    inputs = history.edit(inputs={"x": lambda x: x + 1}, parameters={"fc.bias": 1.0}, live=first)
    third = {"inputs": {"x": lambda x: x * 2}, "parameters": {"fc.bias": lambda bias: bias + 1}}
    live, replayed = inputs.edit(**third, live=True), inputs.edit(**third)
    assert torch.equal(live["output_2"].tensor_contents, replayed["output_2"].tensor_contents)


def test_in_a_live_pass_that_takes_another_way_operations_are_compared_by_their_site():
    model = Signed()
    history = tl.log_forward_pass(model, torch.ones(1, 4))
    edited = history.edit({"abs_1": lambda t: t * 0, "tanh_1": lambda t: t + 1}, live=True)
    assert "tanh_1_7" in history.layer_list
    assert [edit.label for edit in edited.edits] == ["abs_1_2", "tanh_1_6"]
    assert edited.changed_by["abs_1_2"] == 1.0
    assert edited.changed_by["tanh_1_6"] > 0
    assert not any(label.startswith(("add", "sin")) for label in edited.changed_by)


def test_an_effect_within_the_limits_returns_the_edited_history(history):
    edited = tl.assert_effect(history, {"linear_1": 0.0}, at_least=0.5, at_most=1.0)
    assert edited.changed_by["output_2_9"] == 1.0
    assert tl.assert_effect(edited, at_least=0.5) is edited
    assert tl.assert_effect(history, edited, at_least=0.5) is edited
    tl.assert_effect(history, {"sigmoid_1": 0.0}, at_most=0)
    tl.assert_effect(history, parameters={"fc.weight": 0.0, "fc.bias": 0.0}, at_least=0.5)
    tl.assert_effect(history, {"linear_1": 0.0}, at_least=0.5, live=True)


def test_a_metric_is_compared_by_its_difference(history):
    before = float(history.recording.output[1].sum().detach())
    tl.assert_effect(history, {"linear_1": 0.0}, metric=lambda y: y[1].sum(), at_most=abs(before), at_least=abs(before))

    def largest(outputs):
        return outputs[1].max()

    text = failure(history, {"linear_1": 0.0}, metric=largest, at_least=1e6)
    assert re.search(r"changed largest by [\d.]+, wanted at least 1e\+06", text)
    assert re.search(r"largest: [-\d.]+ before, -?0 after", text)


def test_a_failure_names_edit_place_outputs_and_limit(history):
    text = failure(history, {tl.Part("linear_1")[:, 2]: 0.0}, at_most=0.01)
    head, *lines = text.splitlines()
    assert re.fullmatch(
        r"edit of linear_1_3 \[:, 2\] in Branches: changed the outputs by up to [\d.]+ %, wanted at most 1 %", head
    )
    assert lines[:2] == ["edited:", "  linear_1_3 [:, 2] ← 0.0"]
    assert re.fullmatch(r"    in fc \(Linear\), .*samples\.py:\d+, in forward", lines[2])
    assert lines[3] == "outputs:"
    assert re.fullmatch(r"  output_2_9: changed by [\d.]+ %", lines[4])
    assert lines[5] == "  output_1_8: unchanged"


def test_a_failure_says_that_no_output_depends_on_the_edit(history):
    text = failure(history, {"sigmoid_1": 0.0}, at_least=0.01)
    assert "changed the outputs by up to 0 %, wanted at least 1 %" in text
    assert "why: no output depends on sigmoid_1_1" in text
    assert re.search(r"the data end in add_1_2\n  .*samples\.py:\d+", text)


def test_a_failure_names_the_last_value_that_changed_and_what_swallowed_the_change(history):
    text = failure(history, {("linear_1", "sub_1"): 0.0}, at_least=0.01)
    assert re.search(r"why: the last value behind the edit that changed is sub_1_4 \(changed by [\d.]+ %\)", text)
    assert "relu_1_5, which reads it, gave the values that it gave without the edit" in text


def test_a_failure_says_that_the_edit_puts_there_what_was_there(history):
    text = failure(history, {"relu_1": 0.0}, at_least=0.01)
    assert "why: the values of relu_1_5 are the same as without the edit" in text


def test_a_failure_says_where_a_change_shrinks():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh())
    text = failure(tl.log_forward_pass(model, X), {"linear_1": lambda t: t * 10}, at_least=0.5)
    assert re.search(r"the change shrinks most at layernorm_1_2: changed by [\d.e-]+ %, what it reads by 900 %", text)


def test_a_failure_says_how_to_ask_for_a_smaller_effect(history):
    edit = {tl.Part("linear_1")[:, 2]: lambda t: t + 0.001}
    fix = re.search(
        r"fix: at_least is relative .*at_least=(\S+) would pass\. .*metric=", failure(history, edit, at_least=9)
    )
    tl.assert_effect(history, edit, at_least=float(fix[1]) * 0.99)
    assert "fix:" not in failure(history, edit, at_least=9, metric=lambda y: y[1].sum())
    assert "fix:" not in failure(history, {"sigmoid_1": 0.0}, at_least=9)


def test_without_saved_values_outputs_are_compared_and_the_reason_says_what_is_missing(model):
    history = tl.log_forward_pass(model, X, layers_to_save=None)
    tl.assert_effect(history, {"linear_1": 0.0}, at_least=0.5)
    assert "not known, as the values behind the edit were not saved" in failure(
        history, {("linear_1", "sub_1"): 0.0}, at_least=0.01
    )


def test_tensors_in_other_objects_are_outputs_like_any_other():
    model = Bundles()
    history = tl.log_forward_pass(model, X)
    for live in (False, True):
        edited = tl.assert_effect(history, {"add_2": 0.0, "add_3": 9.0}, at_least=0.1, live=live)
        output = edited.recording.output
        assert type(output) is type(history.recording.output)
        assert output["held"] is not history.recording.output["held"]
        assert (output["held"].tensor == 0).all()
        assert (output["others"][0] == 9).all()
        assert torch.equal(output["first"], history.recording.output["first"])
        assert {label for label, change in edited.changed_by.items() if change and "output" in label} == {
            "output_2_7",
            "output_3_8",
        }


def test_all_passes_of_a_layer_count():
    torch.manual_seed(0)
    model = Loop()
    history = tl.log_forward_pass(model, X)
    edited = tl.assert_effect(history, {"tanh_1": lambda t: t + 1}, at_least=0.1)
    assert [edit.label for edit in edited.edits] == ["tanh_1_2:1", "tanh_1_2:2", "tanh_1_2:3"]
    assert "linear_1_1:1" not in edited.changed_by
    assert "linear_1_1:2" in edited.changed_by


def test_passes_that_only_the_live_run_has_are_among_the_edits():
    class Double(nn.Module):
        def forward(self, x):
            return x * 2

    class Until(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = Double()

        def forward(self, x):
            while x.sum() < 20:
                x = self.step(x)
            return x + 1

    model = Until()
    history = tl.log_forward_pass(model, torch.ones(4))
    edited = history.edit({"mul_1": lambda t: t * 0.75}, live=True)
    passes = [op.label for op in edited.operations if op.layer_type == "mul"]
    assert len(passes) > len([op for op in history.operations if op.layer_type == "mul"])
    assert [edit.label for edit in edited.edits] == passes


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({}, ValueError, "expected a limit, such as at_least=0.01"),
        ({"at_least": 0}, ValueError, "at_least: expected a number above 0"),
        ({"at_most": -1}, ValueError, "at_most: expected a number of 0 or more, got -1"),
        ({"at_most": float("nan")}, ValueError, "at_most: expected a number"),
        ({"at_least": "1 %"}, TypeError, "at_least: expected a number, got str"),
        ({"at_least": True}, TypeError, "at_least: expected a number, got bool"),
        ({"at_least": 0.5, "at_most": 0.1}, ValueError, r"at_least \(0.5\) is above at_most \(0.1\)"),
        ({"at_least": 0.1, "metric": 3}, TypeError, "metric: expected a function of what Branches returns"),
        ({"at_least": 0.1, "metric": lambda y: y[0]}, TypeError, "metric: expected a function .* gives a number"),
        ({"at_least": 0.1, "lvie": True}, TypeError, "lvie"),
    ],
)
def test_mistakes(history, kwargs, error, words):
    with pytest.raises(error, match=words):
        tl.assert_effect(history, {"linear_1": 0.0}, **kwargs)


def test_mistakes_about_what_is_edited(history, model):
    with pytest.raises(ValueError, match="edits of gradients alone change no output"):
        tl.assert_effect(history, gradients={"linear_1": 0.0}, at_least=0.1)
    with pytest.raises(ValueError, match=r"expected edits, such as .* got neither"):
        tl.assert_effect(history, at_least=0.1)
    with pytest.raises(TypeError, match=r"expected the history of a pass, .* got Branches"):
        tl.assert_effect(model, {"linear_1": 0.0}, at_least=0.1)
    with pytest.raises(TypeError, match="live: the history is edited already"):
        tl.assert_effect(history.edit({"linear_1": 0.0}), at_least=0.1, live=True)
