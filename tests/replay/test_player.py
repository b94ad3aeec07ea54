"""`Player` replays a recorded graph bit for bit, leaves the model and its inputs unchanged, and frees tensors early."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.replay import Player
from tests.models import DemoNetwork
from tests.models import Function

X = torch.linspace(-1, 1, 12).view(3, 4)


def replayed_outputs(recording: Recording) -> list[torch.Tensor]:
    """Replay every call and check each result against its recorded fingerprint; return the model's outputs."""
    with Player(recording) as player:
        for number, call in enumerate(recording.calls):
            assert not player.wrong_edges(call)
            returned, outputs = player.play(number, call, player.arguments(call))
            assert [fingerprint(tensor) for tensor in outputs] == [value.fingerprint for value in call.outputs]
            player.store(number, call, returned)
        return [player.at(value_of(output).slot) for _, output in recording.outputs]


def writes_in_place(x):
    y = x * 2
    y.add_(1)
    return y * y


def writes_through_a_view(x):
    y = x * 2
    first = y[0]
    first.zero_()
    return y + first


def adds_to_its_input(x):
    return x.add_(1) * 2


def writes_to_two_and_reads_the_second_through_a_view(x):
    largest, places = torch.zeros(3), torch.zeros(3, dtype=torch.long)
    view = places[1:]
    torch.max(x, 1, out=(largest, places))
    return largest[1:] * view


FUNCTIONS = {
    "one operation": torch.sin,
    "in place": writes_in_place,
    "view": writes_through_a_view,
    "two written": writes_to_two_and_reads_the_second_through_a_view,
    "input": adds_to_its_input,
    "several results": lambda x: x.max(1)[0] + x.sort(1)[0].sum(1),
    "random numbers": lambda x: torch.rand_like(x) + torch.dropout(x, 0.5, True),
    "list": lambda x: torch.cat([x, x + 1, torch.ones(1, 4)]),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_result_is_the_recorded_one(function):
    x = X.clone()
    recording = record(Function(function), (x,))
    expected = recording.output
    x.copy_(X)
    (output,) = replayed_outputs(recording)
    assert torch.equal(output, expected)


def test_a_network_with_parameters():
    model = DemoNetwork().eval()
    recording = record(model, (torch.rand(5, 5),))
    (output,) = replayed_outputs(recording)
    assert torch.equal(output, recording.output)


def test_settings_are_the_recorded_ones_and_put_back():
    def without_gradients(x):
        with torch.no_grad():
            return x * 2

    recording = record(Function(without_gradients), (X.clone().requires_grad_(),))
    (output,) = replayed_outputs(recording)
    assert not output.requires_grad
    assert torch.is_grad_enabled()


def test_a_forward_mode_level_is_entered_once_and_left():
    def two_levels(x):
        results = []
        for function in (torch.sin, torch.exp):
            with forward_ad.dual_level():
                results.extend(forward_ad.unpack_dual(function(forward_ad.make_dual(x, x * 2)) * x))
        return sum(results)

    recording = record(Function(two_levels), (X,))
    (output,) = replayed_outputs(recording)
    assert torch.equal(output, recording.output)
    assert forward_ad._current_level == -1
    with forward_ad.dual_level():
        (output,) = replayed_outputs(recording)
    assert torch.equal(output, recording.output)


def test_the_random_generator_is_put_back():
    recording = record(Function(torch.rand_like), (X,))
    before = torch.get_rng_state()
    replayed_outputs(recording)
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_and_buffers_that_calls_overwrite_are_copied():
    model = nn.BatchNorm1d(4)
    x = X.clone()
    recording = record(nn.Sequential(model, Function(adds_to_its_input)), (x,))
    model.reset_running_stats()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    replayed_outputs(recording)
    assert torch.equal(x, X)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_what_is_read_beyond_an_input_is_copied_with_it():
    whole = torch.arange(64.0)

    def adds_and_reads_all(x):
        x.add_(1)
        return x.as_strided((64,), (1,), 0) * 2

    recording = record(Function(adds_and_reads_all), (whole[32:40],))
    expected = recording.output
    whole.copy_(torch.arange(64.0))
    (output,) = replayed_outputs(recording)
    assert torch.equal(output, expected)
    assert torch.equal(whole, torch.arange(64.0))


# -- records that are wrong ----------------------------------------------------------------------------------------


def test_a_changed_argument_gives_other_values():
    recording = record(Function(lambda x: x * 2), (X,))
    call = recording.calls[0]
    call.args = (*call.args[:-1], 3)
    with Player(recording) as player:
        _, (output,) = player.play(0, call, player.arguments(call))
    assert fingerprint(output) != call.outputs[0].fingerprint


def test_an_edge_to_an_overwritten_value_is_wrong():
    def adds_what_was_written_to(x):
        y = x * 2
        y.add_(1)
        return torch.maximum(x, y)

    recording = record(Function(adds_what_was_written_to), (X,))
    double, *_, last = recording.calls
    last.args = (last.args[0], double.outputs[0])
    with Player(recording) as player:
        for number, call in enumerate(recording.calls[:-1]):
            assert player.wrong_edges(call) == {}
            player.store(number, call, player.play(number, call, player.arguments(call))[0])
        assert player.wrong_edges(last) == {"1": [1]}


def test_an_argument_that_no_call_made_is_missing():
    recording = record(Function(lambda x: x.sin().cos()), (X,))
    with Player(recording) as player:
        assert player.missing_arguments(recording.calls[0]) == []
        assert player.missing_arguments(recording.calls[1]) == ["0"]


# -- memory --------------------------------------------------------------------------------------------------------


def test_tensors_are_freed_after_their_last_use():
    def chain(x):
        for _ in range(4):
            x = x.sin()
        return x

    recording = record(Function(chain), (X,))
    alive: list[weakref.ref[torch.Tensor]] = []
    with Player(recording) as player:
        for number, call in enumerate(recording.calls):
            returned, outputs = player.play(number, call, player.arguments(call))
            alive.append(weakref.ref(returned[0]))
            player.store(number, call, returned)
            del returned, outputs
            assert [ref() is not None for ref in alive] == [False] * number + [True]
    assert alive[-1]() is None


def test_what_a_later_call_reads_stays():
    recording = record(Function(lambda x: (y := x.sin()).cos() + y), (X,))
    slot = recording.calls[0].outputs[0].slot
    assert [value_of(read).slot for _, read in edges_in(recording.calls[2])][1] == slot
    with Player(recording) as player:
        there = []
        for number, call in enumerate(recording.calls):
            player.store(number, call, player.play(number, call, player.arguments(call))[0])
            there.append(player.has(slot))
    assert there == [True, True, False]


def test_the_mode_of_gradients_is_put_back_though_a_call_ran_inside_another():
    recording = record(Function(torch.sin), (X,))
    with Player(recording) as player:
        with torch.no_grad():
            player.run(recording.calls[0], player.arguments(recording.calls[0]))
        assert torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def change_mode_and_raise(recording, enabled):
    with Player(recording) as player:
        player.run(recording.calls[0], player.arguments(recording.calls[0]))
        torch.set_grad_enabled(enabled)
        raise LookupError


@pytest.mark.parametrize("outside", [False, True])
def test_the_mode_of_gradients_is_put_back_after_code_inside_changed_it_and_raised(outside):
    recording = record(Function(torch.sin), (X,))
    with torch.set_grad_enabled(outside):
        with pytest.raises(LookupError):
            change_mode_and_raise(recording, not outside)
        assert torch.is_grad_enabled() is outside
