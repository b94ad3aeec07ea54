"""Time, memory and floating-point operations of a forward pass."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import pytest_torchlens as tl
from pytest_torchlens.measure import FORMULAS
from pytest_torchlens.records import Measurements
from pytest_torchlens.replay import Player
from tests.models import DoesMoreEachTime
from tests.models import Function
from tests.models import SmallConvNet


def measured(model, *inputs, **options):
    with torch.no_grad():
        return tl.measure_forward_pass(model, list(inputs), passes=1, **options)


def of_function(function, *inputs):
    found = measured(Function(function), *inputs)
    return dict(zip(found.operations, found.live_bytes, strict=True)), found


# -- floating-point operations -----------------------------------------------------------------------------------


def test_what_a_linear_layer_costs():
    found = measured(nn.Linear(2, 3), torch.ones(5, 2))
    assert found.operations == ("linear_1_1",)
    assert found.operation_flops == (2 * 5 * 2 * 3,)
    assert found.operation_bytes_moved == (4 * (5 * 2 + 2 * 3 + 3 + 5 * 3),)
    assert found.operation_intensity == (60 / 136,)
    assert found.live_bytes == (4 * 5 * 3,)


def encoder_layer():
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)


MODELS = {
    "convolutions": (SmallConvNet, (2, 3, 8, 8)),
    "attention": (lambda: nn.MultiheadAttention(16, 4, batch_first=True), (2, 5, 16)),
    "encoder layer": (encoder_layer, (2, 5, 16)),
    "lstm": (lambda: nn.LSTM(6, 4, num_layers=2, bidirectional=True), (7, 2, 6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_flops_are_those_of_the_whole_model(name):
    make, shape = MODELS[name]
    model, x = make().eval(), torch.rand(shape)
    inputs = [x, x, x] if name == "attention" else [x]
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        model(*inputs)
    assert measured(model, *inputs).flops == counter.get_total_flops() > 0


def scores(x):
    return nn.functional.scaled_dot_product_attention(x, x, x)


FUSED = {name: MODELS[name] for name in ("attention", "encoder layer")} | {
    "scaled dot product": (lambda: Function(scores), (2, 4, 5, 16)),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_cost_what_their_steps_do(name):
    make, shape = FUSED[name]
    model, x = make().eval(), torch.rand(shape)
    inputs = [x, x, x] if name == "attention" else [x]
    steps = tl.measure_forward_pass(model.train(), inputs, passes=1) if name != "scaled dot product" else None
    heads, length, width = (4, 5, 4) if steps else (4, 5, 16)
    in_attention = 2 * 2 * 2 * heads * length * length * width
    fused = measured(model.eval(), *inputs)
    assert fused.flops >= in_attention
    if steps:
        assert fused.flops == steps.flops
    else:
        assert fused.flops == in_attention


@pytest.mark.zoo
@pytest.mark.parametrize(("name", "multiply_adds"), [("resnet50", 4.09), ("vit_b_16", 17.56)])
def test_published_numbers(name, multiply_adds):
    torchvision = pytest.importorskip("torchvision")
    found = measured(getattr(torchvision.models, name)(weights=None).eval(), torch.rand(1, 3, 224, 224))
    assert round(found.flops / 2e9, 2) == multiply_adds
    assert found.peak_bytes == pytest.approx(found.measured_peak_bytes, rel=0.1)


# -- memory ------------------------------------------------------------------------------------------------------


def chain(x):
    y = x + 1
    z = (y * 2).relu_()
    y = None
    return z[0] - z.sum()


def test_live_memory():
    live, found = of_function(chain, torch.ones(10, 100))
    assert live == {
        "add_1_1": 4000,
        "mul_1_2": 8000,
        "relu_1_3": 8000,
        "getitem_1_4": 4000,
        "sum_1_5": 4004,
        "sub_1_6": 4404,
    }
    assert (found.peak_bytes, found.peak_operation, found.measured_peak_bytes) == (8000, "mul_1_2", 8000)


def holds_on(x):
    y = x + 1
    z = y * 2
    w = z * 2
    del y
    return w


def test_memory_that_python_holds_and_that_is_needed():
    live, found = of_function(holds_on, torch.ones(1000))
    assert live == {"add_1_1": 4000, "mul_1_2": 8000, "mul_2_3": 12000}
    assert found.needed_peak_bytes == 8000


def test_a_view_moves_nothing_and_what_is_overwritten_is_written():
    _, found = of_function(lambda x: x[1:].add_(1).t(), torch.ones(3, 4))
    assert found.operation_bytes_moved == (0, 2 * 4 * 8, 0)


def fills(x):
    return torch.empty(1000).copy_(x.add_(1))


def test_copies_that_the_recorder_makes_do_not_count():
    live, found = of_function(fills, torch.ones(1000))
    assert live == {"empty_1_1": 4000, "add_1_2": 4000, "copy_1_3": 4000}
    assert (found.needed_peak_bytes, found.measured_peak_bytes) == (4000, 4000)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    found = measured(Function(lambda x: torch.nested.nested_tensor([x, x[:2]]) * 2), torch.ones(4, 4))
    assert found.operation_bytes_moved[-1] == 2 * 4 * 24


@pytest.mark.parametrize(
    "model", [SmallConvNet().eval(), SmallConvNet().train(), nn.LSTM(6, 4), encoder_layer().eval()]
)
def test_the_computed_peak_is_the_measured_one(model):
    x = torch.rand(2, 3, 8, 8) if isinstance(model, SmallConvNet) else torch.rand(7, 2, model_width(model))
    found = measured(model, x)
    assert found.peak_bytes == found.measured_peak_bytes
    assert 0 < found.needed_peak_bytes <= found.peak_bytes


def model_width(model):
    return 6 if isinstance(model, nn.LSTM) else 16


# -- time and modules --------------------------------------------------------------------------------------------


def test_modules_cost_what_their_operations_do():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2))
    found = measured(model, torch.ones(3, 4))
    by_address = {module.address: module for module in found.modules}
    assert list(by_address) == ["", "0", "0.0", "0.1", "1"]
    whole = by_address[""]
    assert (whole.seconds, whole.flops, whole.bytes_moved) == (
        pytest.approx(found.seconds),
        found.flops,
        found.bytes_moved,
    )
    assert (whole.self_seconds, whole.self_flops, whole.self_bytes_moved) == (0, 0, 0)
    assert by_address["0"].flops == by_address["0.0"].self_flops == 2 * 3 * 4 * 8
    assert sum(module.self_seconds for module in found.modules) == pytest.approx(found.seconds)


class CallsItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, depth=2):
        x = self.fc(x)
        return self(x, depth - 1) if depth else x


def test_a_module_inside_itself_is_counted_once():
    found = measured(CallsItself(), torch.ones(1, 4))
    assert {module.address: module.flops for module in found.modules} == {"": 96, "fc": 96}


def test_times_are_there():
    found = measured(nn.Linear(2, 3), torch.ones(5, 2))
    assert found.forward_seconds > 0
    assert found.forward_runs > 1
    assert found.num_threads == torch.get_num_threads()
    assert found.seconds > 0
    assert found.overhead_seconds >= 0


def test_every_number_says_how_it_was_had():
    found = measured(nn.Linear(2, 3), torch.ones(5, 2))
    told = {field.name for field in dataclasses.fields(Measurements)} & found.methods.keys()
    assert told == found.methods.keys()
    assert told >= {"forward_seconds", "operation_seconds", "operation_flops", "operation_bytes_moved", "live_bytes"}
    assert told >= {"needed_peak_bytes", "measured_peak_bytes"}


# -- what it leaves behind, and what it cannot do ----------------------------------------------------------------


def test_model_inputs_and_generators_are_left_as_they_were():
    model, x = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), nn.ReLU(inplace=True)).train(), torch.randn(4, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    buffers, given, state = dict(model.named_buffers()), x.clone(), torch.get_rng_state()
    overwriting = Function(lambda x: model(x.add_(1)))
    overwriting.model = model
    measured(overwriting, x)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(buffers[name] is buffer for name, buffer in model.named_buffers())
    assert torch.equal(x, given)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_recorded_pass_is_taken_where_there_is_one():
    model, x = nn.Linear(2, 3), torch.ones(5, 2)
    history = tl.log_forward_pass(model, x)
    assert measured(model, x, history=history).operations == ("linear_1_1",)


def test_calls_that_cannot_be_run_again(monkeypatch):
    def refuse(self, call, arguments):
        raise RuntimeError("no second time")

    monkeypatch.setattr(Player, "run", refuse)
    found = measured(nn.Linear(2, 3), torch.ones(5, 2))
    assert (found.operation_flops, found.operation_bytes_moved, found.needed_peak_bytes) == ((), (), None)
    reason = "not known: call 0 (linear) cannot be run again: no second time"
    assert {found.methods[name] for name in ("operation_flops", "operation_bytes_moved", "needed_peak_bytes")} == {
        reason
    }
    assert len(found.operation_seconds) == len(found.live_bytes) == 1
    assert [module.seconds > 0 for module in found.modules] == [True]


def test_a_model_that_runs_other_operations_each_time():
    found = measured(DoesMoreEachTime(), torch.ones(2))
    assert found.live_bytes == (8, 16)
    assert found.methods["live_bytes"] == (
        "the model ran other operations the second time; so storages of the replay, each up to its last use"
    )
    assert len(found.operation_seconds) == 2


class RemembersATable(nn.Module):
    table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.cos(torch.ones(2))
        return x + self.table


def test_what_is_made_once_and_kept_is_no_cost():
    assert measured(RemembersATable(), torch.ones(2)).operations == ("add_1_1",)


def test_no_pass_at_all():
    with pytest.raises(ValueError, match="passes: expected at least 1, got 0"):
        tl.measure_forward_pass(nn.Linear(2, 3), torch.ones(5, 2), passes=0)
