"""Swaps in parts: shared and moved memory, sizes that depend on values, modes, and errors with a hint."""

from __future__ import annotations

import pytest
import torch

import pytest_torchlens as tl
from pytest_torchlens import DecisionChangedError
from pytest_torchlens import NotReplayableError
from pytest_torchlens.capture import fingerprint
from tests.models import Function
from tests.replay.test_subgraph import X
from tests.replay.test_subgraph import contents
from tests.replay.test_subgraph import digests
from tests.replay.test_subgraph import history_of
from tests.replay.test_subgraph import network


def unchanged(history, part, swap):
    """Return what a run with a swap gives, and check that inputs and saved activations stay as they are."""
    held = [node.value.tensor for node in history.nodes if node.value.tensor is not None]
    before = [fingerprint(tensor) for tensor in held]
    result = part.run(swap)
    assert [fingerprint(tensor) for tensor in held] == before
    return result


def test_a_swap_of_data_does_not_overwrite_the_saved_activation_that_was_put_there():
    def function(x):
        added, other = x + 1, x * 1
        other.data = added.detach()
        return added, other

    history = history_of(function)
    label = next(label for label in history.layer_list if label.startswith("data"))
    values = unchanged(history, history.subgraph(end=["detach_1", label]), {label: 0.0})
    assert not values[label].any()
    assert torch.equal(values[history["detach_1"].layer_label], X + 1)  # as it was when it was made


@pytest.mark.parametrize("unsaved", [False, True])
def test_a_call_that_overwrites_one_memory_by_two_arguments_runs_over_one(unsaved):
    def function(x):
        y = x * 2
        part = y[:, :2]
        torch._foreach_mul_([y, part], 0.5)
        return part + 1

    history = history_of(function, layers_to_save=None if unsaved else "all")
    label = next(node.label for node in history.nodes if node.label.startswith("foreachmul"))
    node = next(node for node in history.nodes if node.label == label)
    part = history.subgraph(operations=[label], end=label)
    assert digests(part.run()) == {label: node.value.fingerprint}
    with pytest.raises(NotReplayableError, match="cannot be swapped: its operation wrote there by two arguments"):
        part.run({label: 0.0})


def test_a_call_that_reads_the_memory_that_it_overwrites_runs_over_it():
    def function(x):
        y = x * 2
        first, later = y[:, :-1], y[:, 1:]
        return later.copy_(first.t().t()), y.sum()

    history = history_of(function)
    label = next(label for label in history.layer_list if label.startswith("copy"))
    assert history.nodes[[node.label for node in history.nodes].index(label)].call.overlaps
    assert digests(history.subgraph(operations=[label], end=label).run()) == contents(history, label)


def test_a_result_that_autograd_cannot_follow_is_returned_without_a_graph():
    x = X.clone().requires_grad_()

    def function(x):
        with torch.no_grad():
            rows = (x * 1).unbind(0)
            parts = rows[0].unbind(0)
        rows[1].mul_(2)
        return parts[0] + 0, rows[1]

    history = tl.log_forward_pass(Function(function), x)
    for node in history.nodes:
        if node.kind == "operation":
            assert digests(history.subgraph(end=node.label).run()) == {node.label: node.value.fingerprint}


CHOICES = {
    "index": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "nonzero": lambda x: (x > 0).nonzero(),
    "where": lambda x: torch.where(x > 0)[0],
    "unique": lambda x: x.sign().unique(),
    "unique_consecutive": lambda x: x.sign().flatten().unique_consecutive(),
    "bincount": lambda x: (x > 0).flatten().long().bincount(),
    "repeat_interleave": lambda x: torch.ones(12).repeat_interleave((x > 0).flatten().long()),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_size_that_a_swap_changes_is_a_decision_though_nothing_else_reads_it(choice):
    def function(x):
        y = x + 0
        return y * 2 if CHOICES[choice](y).shape[0] > 1 else y

    history = history_of(function)
    with pytest.raises(DecisionChangedError, match="has shape"):
        history.subgraph().run({"add_1": -3.0})
    end = next(iter(history.subgraph().outputs))
    unchecked = history.subgraph().run({"add_1": -3.0}, check_decisions=False)[end]
    assert set(unchecked.flatten().tolist()) < {-6.0, -3.0}


def test_a_swap_that_changes_the_mode_of_gradients_changes_it_for_itself_alone():
    def switched_off(tensor):
        torch.set_grad_enabled(False)
        return tensor * 2

    history = tl.log_forward_pass(network(), X)
    result = history.subgraph().run({"relu_1": switched_off})
    assert torch.is_grad_enabled()
    assert result["output_1_6"].requires_grad  # by the layers after it


def test_an_error_of_a_swap_is_the_users_and_leaves_the_modes_as_they_were():
    def failing(tensor):
        torch.set_grad_enabled(False)
        raise LookupError("mine")

    history = history_of(lambda x: x.sin().cos())
    state = torch.get_rng_state()
    with pytest.raises(LookupError, match="mine"):
        history.subgraph().run({"sin_1": failing})
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"operations": []}, "expected one key or more"), ({"start": []}, "one key"), ({"end": []}, "one key")],
)
def test_no_key_at_all_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        history_of(torch.sin).subgraph(**arguments)


def test_an_end_before_the_start_an_output_as_start_and_a_misspelled_parameter_have_a_hint():
    history = tl.log_forward_pass(network(), X)
    with pytest.raises(ValueError, match="'relu_1_2', which comes after it: name the start first"):
        history.subgraph("relu_1", "linear_1")
    with pytest.raises(ValueError, match="where nothing can start: name 'linear_3_5'"):
        history.subgraph().run({"output_1": 0.0})
    with pytest.raises(tl.LookupKeyError, match=r"parameters: did you mean '0.weight'"):
        history.subgraph().run({"0.weigth": 0.0})
    with pytest.raises(TypeError, match="expected a mapping from keys to new values, got str"):
        history.subgraph().run("relu_1")


def test_a_loaded_history_says_that_parts_need_the_recording(tmp_path):
    history_of(torch.sin).save(tmp_path / "pass")
    with pytest.raises(AttributeError, match="a loaded history has no 'subgraph': that needs the model"):
        _ = tl.load(tmp_path / "pass").subgraph


@pytest.mark.parametrize("size", [2, 12, 20])
def test_a_swap_goes_on_through_memory_that_is_resized(size):
    def function(x):
        return (x * 2).resize_(size) + 0

    history = history_of(function)
    end = next(label for label in history.layer_list if label.startswith("add"))
    recorded = history[end].tensor_contents
    assert digests(history.subgraph(end=end).run()) == contents(history, end)
    swapped = history.subgraph(end=end).run({"mul_1": 7.0})[end]
    kept = min(size, 12)
    assert (swapped[:kept] == 7).all()
    assert torch.equal(swapped[kept:].view(torch.int32), recorded[kept:].view(torch.int32))  # there may be NaN
