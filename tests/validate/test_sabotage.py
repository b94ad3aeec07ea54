"""Each kind of damage to a record is found, at the damaged operation."""

from __future__ import annotations

import pytest
import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.validate import check_recording
from tests.models import DemoNetwork
from tests.models import Function
from tests.models import Views


def recorded(model, x, keep="all"):
    recording = record(model, (x,), keep=keep)
    return recording, ModelHistory(recording)


def verdicts(recording, history):
    return {part.name: part for part in check_recording(recording, history)}


@pytest.fixture
def demo():
    torch.manual_seed(1)
    return recorded(DemoNetwork().eval(), torch.rand(5, 5))


def test_an_undamaged_recording_passes(demo):
    assert all(part.status is Status.PASSED for part in verdicts(*demo).values())


OPERATIONS = range(9)


@pytest.mark.parametrize("number", OPERATIONS)
def test_a_saved_activation_changed_by_one_bit(demo, number):
    recording, history = demo
    value = recording.calls[number].outputs[0]
    value.tensor = value.tensor.detach().clone()
    value.tensor.view(torch.int32)[0, 0] ^= 1
    part = verdicts(recording, history)["replay"]
    assert [failure.operation for failure in part.failures] == [history.label(number)]
    assert part.failures[0].message == "the saved activation is not what the operation gave"
    assert part.failures[0].source_line


@pytest.mark.parametrize("number", OPERATIONS)
def test_a_changed_fingerprint(demo, number):
    recording, history = demo
    recording.calls[number].outputs[0].digest ^= 1
    part = verdicts(recording, history)["replay"]
    assert part.failures[0].operation == history.label(number)
    assert part.failures[0].message == "the replayed values of float32[5, 5] differ from the recorded ones"


@pytest.mark.parametrize("number", [1, 2, 3, 5, 6, 7, 8])
def test_an_edge_to_another_parent(demo, number):
    recording, history = demo
    label, call = history.label(number), recording.calls[number]
    call.args = (recording.sources[0].value, *call.args[1:])
    assert verdicts(recording, history)["replay"].failures[0].operation == label


def test_swapped_arguments(demo):
    recording, history = demo
    (division,) = [call for call in recording.calls if call.info.layer_type == "div"]
    division.args = division.args[::-1]
    assert verdicts(recording, history)["replay"].failures[0].operation == "div_1_8"


def test_a_changed_constant_argument(demo):
    recording, history = demo
    recording.calls[0].args = (recording.calls[0].args[0], 2)
    assert verdicts(recording, history)["replay"].failures[0].operation == "add_1_1"


def test_a_stale_buffer(demo):
    recording, history = demo
    (buffer,) = [source for source in recording.sources if source.kind == "buffer"]
    buffer.live.add_(1)
    assert verdicts(recording, history)["replay"].failures[0].operation == "mul_1_9"


def test_a_lost_random_state(demo):
    recording, history = demo
    (draw,) = [call for call in recording.calls if call.random is not None]
    draw.random = None
    part = verdicts(recording, history)["replay"]
    assert part.failures[0].operation == "randn_1_5"
    assert "random numbers" in part.failures[0].cause


def test_a_lost_random_state_where_the_generator_is_in_it_again():
    torch.manual_seed(1)
    recording, history = recorded(Function(torch.rand_like), torch.zeros(3))
    recording.calls[0].random = None
    torch.manual_seed(1)
    assert verdicts(recording, history)["replay"].failures[0].operation == "randlike_1_1"


@pytest.mark.parametrize(
    ("fact", "wrong"),
    [("shape", torch.Size([4, 3])), ("dtype", torch.float64), ("requires_grad", True)],
)
def test_a_wrong_fact_of_uninitialised_memory_whose_values_nothing_says(fact, wrong):
    recording, history = recorded(Function(lambda x: torch.empty(3, 4).copy_(x) + 1), torch.rand(3, 4))
    assert recording.calls[0].uninitialised
    setattr(recording.calls[0].outputs[0], fact, wrong)
    replay = verdicts(recording, history)["replay"]
    assert replay.failures[0].operation == "empty_1_1"


def test_a_forgotten_in_place_write():
    recording, history = recorded(Views(), torch.rand(2, 3))
    label = history.label(5)
    recording.calls[3].info = recording.calls[0].info  # add_ becomes mul
    recording.calls[3].args = (recording.calls[3].args[0], 1)
    assert verdicts(recording, history)["replay"].failures[0].operation == "add_1_4"
    assert label == "mul_3_6"


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("layer_label", "linear_2_3"), ("layer_type", "conv2d"), ("layer_total_num", 4), ("layer_type_num", 2)],
)
def test_a_wrong_label(demo, attribute, value):
    recording, history = demo
    node = history.nodes[3]
    setattr(node, attribute, value)
    part = verdicts(recording, history)["invariants"]
    assert part.status is Status.FAILED
    assert node.label in {failure.operation for failure in part.failures}


def test_a_dropped_edge_in_the_graph(demo):
    recording, history = demo
    node = next(node for node in history.nodes if node.layer_label == "div_1_8")
    node.parents.pop()
    failures = reversed(verdicts(recording, history)["invariants"].failures)
    messages = {failure.operation: failure.message for failure in failures}  # the first of each operation
    assert messages["div_1_8"] == "its call was given 2 tensors, but 1 parents and parameters are listed"
    assert messages["pow_1_7"] == "its child div_1_8 does not list it as a parent"


def test_an_edge_that_is_listed_twice(demo):
    recording, history = demo
    node = next(node for node in history.nodes if node.layer_label == "div_1_8")
    node.parents.append(node.parents[0])
    messages = [failure.message for failure in verdicts(recording, history)["invariants"].failures]
    assert "its call was given 2 tensors, but 3 parents and parameters are listed" in messages


@pytest.mark.parametrize("number", [0, 2])
def test_a_pass_that_its_layer_does_not_have(demo, number):
    recording, history = demo
    node = next(node for node in history.nodes if node.layer_label == "div_1_8")
    node.pass_num = number
    found = verdicts(recording, history)["invariants"].failures
    assert f"it is not pass {number} of its layer" in [failure.message for failure in found]


@pytest.mark.parametrize("count", [0, 2])
def test_more_or_fewer_outputs_than_the_model_returned(demo, count):
    recording, history = demo
    recording.outputs = recording.outputs * count
    (failure,) = verdicts(recording, history)["replay"].failures
    assert failure.message == f"{count} output tensors are recorded where the model returned 1"


def test_an_operation_in_the_wrong_module(demo):
    recording, history = demo
    relu = next(call for call in recording.module_calls if call.address == "relu_module")
    recording.calls[2].module = relu
    (failure,) = verdicts(recording, history)["invariants"].failures
    assert failure.operation == "linear_1_3"
    assert "'relu_module:1'" in failure.message


def test_an_edge_past_an_in_place_write():
    recording, history = recorded(Function(lambda x: (x * 2).add_(1).pow(2)), torch.rand(3))
    power = recording.calls[2]
    power.args = (recording.calls[0].outputs[0], 2)  # mul's value, in the slot that add_ has overwritten
    (failure,) = verdicts(recording, history)["replay"].failures
    assert failure.operation == "pow_1_3"
    assert failure.message == "argument 0 is recorded with another parent than the one whose value the tensor held"


@pytest.mark.parametrize("keep", [0, 1])
def test_a_forgotten_write_through_a_view(keep):
    recording, history = recorded(Views(), torch.rand(2, 3))
    read = recording.calls[5].args[0]
    recording.calls[5].args = (Aliased(read.value, read.writes[keep : keep + 1]), 2)
    (failure,) = verdicts(recording, history)["replay"].failures
    assert failure.operation == "mul_3_6"


def test_perturbation_is_not_run_where_the_replay_stops():
    recording, history = recorded(DemoNetwork(), torch.rand(5, 5))
    recording.calls[4].args = ((3, -1),)
    found = {part.name: part for part in check_recording(recording, history, ["perturbation"])}
    assert found["perturbation"].status is Status.NOT_RUN
