"""What a pass costs, by numbers that are worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.measure import times
from pytest_torchlens.records import Measurements
from tests.models import Function


def measured(model: nn.Module, *inputs: torch.Tensor, passes: int = 1) -> Measurements:
    with torch.no_grad():
        return tl.measure_forward_pass(model.eval(), list(inputs), passes=passes)


@pytest.mark.parametrize(("directions", "layers", "flops"), [(1, 1, 4480), (2, 1, 8960), (1, 2, 8064)])
def test_a_recurrent_layer_multiplies_input_and_state_in_each_step(directions: int, layers: int, flops: int):
    # 7 steps of a batch of 2; four gates of 4 numbers, each of 6 inputs (then 4) and 4 states
    lstm = nn.LSTM(6, 4, num_layers=layers, bidirectional=directions > 1)
    assert measured(lstm, torch.rand(7, 2, 6)).flops == flops


def test_attention_projects_in_and_out_and_compares_all_pairs():
    # batch 2, 5 tokens of 16 numbers: three projections in and one out, then scores and their sums in 4 heads of 4
    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.rand(2, 5, 16)
    assert measured(attention, x, x, x).flops == 4 * (2 * 10 * 16 * 16) + 2 * (2 * 2 * 4 * 5 * 5 * 4)


def test_an_encoder_layer_has_two_linear_layers_after_its_attention():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    attention = 4 * (2 * 10 * 16 * 16) + 2 * (2 * 2 * 4 * 5 * 5 * 4)
    assert measured(layer, torch.rand(2, 5, 16)).flops == attention + 2 * (2 * 10 * 16 * 32)


def test_each_operation_has_its_own_floating_point_operations():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    assert measured(model, torch.ones(5, 2)).operation_flops == (60, 0, 120)


def of_views(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y.t() * 2


def of_outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + 1
    z = y * 2
    return y, z * 2


def in_steps(x: torch.Tensor) -> torch.Tensor:
    return torch.nanmean(x)


def in_other_memory(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = torch.empty(0).set_(y.untyped_storage())
    return y + z


def test_memory_that_a_tensor_is_given_is_counted_once():
    assert measured(Function(in_other_memory), torch.ones(1000)).measured_peak_bytes == 8000


def test_memory_under_two_tensors_is_needed_once():
    assert measured(Function(of_views), torch.ones(10, 100)).needed_peak_bytes == 8000


def test_memory_of_an_output_is_needed_up_to_the_end():
    assert measured(Function(of_outputs), torch.ones(10, 100)).needed_peak_bytes == 12_000


def test_the_most_that_lives_while_an_operation_runs_counts_not_what_is_left_of_it():
    found = measured(Function(in_steps), torch.ones(1000, 10))
    assert len(found.operations) == 1
    assert found.live_bytes[0] == found.measured_peak_bytes >= 10_000  # which numbers are none; its result has 4 bytes


def test_times_are_median_and_quartiles_of_as_many_runs_as_make_a_hundredth_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
):
    seconds = iter([0.001, 0.001, 0.005, 0.001, 0.003, 0.002, 0.004])  # two to warm up
    monkeypatch.setattr(times, "seconds_of", lambda run, number: next(seconds))
    found = measured(nn.ReLU(), torch.ones(3), passes=5)
    assert (found.forward_seconds, found.forward_spread) == (0.003, pytest.approx(0.002))
    assert found.forward_runs == 10 * 5


def test_what_recording_adds_is_taken_off_each_operation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(times, "overhead_seconds", lambda: 10.0)
    found = measured(nn.Sequential(nn.ReLU(), nn.ReLU()), torch.ones(3))
    assert found.operation_seconds == (0.0, 0.0)
    monkeypatch.setattr(times, "overhead_seconds", lambda: 0.0)
    assert min(measured(nn.ReLU(), torch.ones(3)).operation_seconds) > 0
