"""The contents of a recording; recording changes nothing."""

from __future__ import annotations

import ctypes
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.capture import TraceError
from pytest_torchlens.capture import record
from tests.models import DemoNetwork
from tests.models import Function
from tests.models import SmallConvNet


def names(function, *args):
    return [call.info.layer_type for call in record(Function(function), args).calls]


X = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)


WAYS = {
    "x + 1": (lambda x: x + 1, ["add"]),
    "1 + x": (lambda x: 1 + x, ["add"]),
    "x.add(1)": (lambda x: x.add(1), ["add"]),
    "torch.add(x, 1)": (lambda x: torch.add(x, 1), ["add"]),
    "1 - x": (lambda x: 1 - x, ["sub"]),
    "1 / x": (lambda x: 1 / x, ["reciprocal", "mul"]),
    "x / 2": (lambda x: x / 2, ["div"]),
    "torch.true_divide(x, 2)": (lambda x: torch.true_divide(x, 2), ["div"]),
    "x**2": (lambda x: x**2, ["pow"]),
    "2**x": (lambda x: 2**x, ["pow"]),
    "x @ x.T": (lambda x: x @ x.T, ["t", "matmul"]),
    "x[0]": (lambda x: x[0], ["getitem"]),
    "-x": (lambda x: -x, ["neg"]),
    "x > 0": (lambda x: x > 0, ["gt"]),
    "(x > 0) & (x < 1)": (lambda x: (x > 0) & (x < 1), ["gt", "lt", "and"]),
    "torch.ops.aten.mul(x, x)": (lambda x: torch.ops.aten.mul(x, 2), ["mul"]),
    "torch.ops.aten.mul.Tensor(x, x)": (lambda x: torch.ops.aten.mul.Tensor(x, x), ["mul"]),
    "F.relu(x)": (F.relu, ["relu"]),
    "F.softmax(x, -1)": (lambda x: F.softmax(x, -1), ["softmax"]),
    "F.softsign(x)": (F.softsign, ["abs", "add", "div"]),
    "x.chunk(2, -1)[0]": (lambda x: x.chunk(2, -1)[0], ["chunk"]),
    "torch.special.expm1(x)": (torch.special.expm1, ["special_expm1"]),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), ["einsum"]),
    "x.unflatten(0, (3, 1))": (lambda x: x.unflatten(0, (3, 1)), ["unflatten"]),
    "sum(row for row in x)": (lambda x: sum(row for row in x), ["unbind", "add", "add", "add"]),
}


@pytest.mark.parametrize(("function", "expected"), WAYS.values(), ids=WAYS)
def test_each_way_to_call_a_function_has_one_name(function, expected):
    assert names(function, X.clone()) == expected


def test_in_place_calls_share_the_name_and_are_marked():
    recording = record(Function(lambda x: x.mul(1).add_(1).relu_()), (X.clone(),))
    assert [call.info.layer_type for call in recording.calls] == ["mul", "add", "relu"]
    assert [len(call.writes) for call in recording.calls] == [0, 1, 1]
    assert len({call.outputs[0].slot for call in recording.calls}) == 1


def test_asking_for_shape_dtype_or_device_is_no_operation():
    assert names(lambda x: x.reshape(x.shape[0], x.size(1), 1).to(x.dtype) if x.dim() == 2 else x, X) == [
        "reshape",
        "to",
    ]


def test_attention_is_expanded_to_its_steps():
    attention = nn.MultiheadAttention(8, 2)
    recording = record(attention, (torch.randn(3, 1, 8),) * 3)
    steps = [call.info.layer_type for call in recording.calls]
    assert steps.count("linear") == 2
    assert steps.count("softmax") == 1
    assert {call.group.path for call in recording.calls if call.group} == {"multi_head_attention_forward"}


def test_transformer_fast_path_is_taken_and_equal():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        recording = record(encoder, (x,))
        plain = encoder(x)
    assert [call.info.name for call in recording.calls] == ["_transformer_encoder_layer_fwd"] * 2
    assert torch.equal(recording.output, plain)


def test_fast_path_stays_closed_to_tensors_that_do_override():
    encoder = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    seen = []

    class Override(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        recording = record(encoder, (x.as_subclass(Override),))
        plain = encoder(x.as_subclass(Override))
    assert "_transformer_encoder_layer_fwd" not in [call.info.name for call in recording.calls]
    assert torch.equal(recording.output, plain)


def test_sources_have_kind_and_address():
    recording = record(DemoNetwork(), (torch.rand(5, 5),))
    assert [(source.kind, source.name) for source in recording.sources] == [
        ("input", "0"),
        ("parameter", "fc.weight"),
        ("parameter", "fc.bias"),
        ("buffer", "example_buffer"),
    ]


def test_a_parameter_that_is_the_input_too_is_a_parameter():
    model = nn.Linear(2, 2, bias=False)
    (source,) = record(model, (model.weight,)).sources
    assert (source.kind, source.name) == ("parameter", "weight")


def test_inputs_in_containers_and_by_keyword_are_sources():
    class Pick(nn.Module):
        def forward(self, pair, *, scale):
            return pair["a"][0] * scale

    one, two = torch.ones(2), torch.full((2,), 3.0)
    recording = record(Pick(), ({"a": [one]},), {"scale": two})
    assert [(s.kind, s.name) for s in recording.sources] == [("input", "0.a.0"), ("input", "scale")]


def test_a_tensor_that_nothing_made_is_a_constant_with_its_value():
    held = torch.arange(3.0)
    recording = record(Function(lambda x: x + held), (torch.zeros(3),))
    (constant,) = [source for source in recording.sources if source.kind == "constant"]
    assert constant.value.tensor is held
    assert constant.value.fingerprint


def test_a_view_made_unseen_becomes_an_alias_of_its_base():
    def forward(x):
        y = x * 2
        return torch.from_numpy(y.detach().numpy()) + 1

    recording = record(Function(forward), (torch.ones(3),))
    assert [call.info.layer_type for call in recording.calls] == ["mul", "detach", "as_strided", "add"]
    assert recording.calls[2].group.path == "alias"


def test_the_offset_of_a_view_made_unseen_is_that_in_its_memory():
    tail = torch.arange(8.0)[2:]
    last = tail[1:]
    recording = record(Function(lambda x: x * tail + last.sum()), (torch.ones(6),))
    (view,) = [call for call in recording.calls if call.info.layer_type == "as_strided"]
    assert view.args[1:] == ((5,), (1,), 3)


def test_a_write_to_one_buffer_shows_in_another_over_the_same_memory_that_is_read_later():
    class Sharing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(3))
            self.register_buffer("first", self.table[:2])

        def forward(self, x):
            self.first.add_(x)
            return self.table * 2

    addition, product = record(Sharing(), (torch.ones(2),)).calls
    assert product.args[0].writes == addition.outputs


def test_whole_numbers_are_saved_in_their_own_type():
    options = SaveOptions(dtype=torch.float16)
    recording = record(Function(lambda x: (x * 2).argmax()), (torch.ones(2),), keep=options)
    assert [call.outputs[0].tensor.dtype for call in recording.calls] == [torch.float16, torch.int64]


def test_escapes_into_python_are_noted_with_their_values():
    def forward(x):
        if x.sum() > 0:
            return x * x.max().item()
        return x

    recording = record(Function(forward), (torch.ones(2),))
    assert [(escape.name, escape.result) for escape in recording.escapes] == [("__bool__", True), ("item", 1.0)]


def test_module_calls_are_nested_and_numbered():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared))
    recording = record(model, (torch.ones(1, 2),))
    assert [call.label for call in recording.module_calls] == [":1", "0:1", "1:1", "1.0:1", "0:2"]
    assert [call.parent.label if call.parent else None for call in recording.module_calls] == [
        None,
        ":1",
        ":1",
        "1:1",
        "1:1",
    ]
    assert [call.module.label for call in recording.calls] == ["0:1", "1.0:1", "0:2"]


def test_saved_activations_are_what_they_were_when_made():
    def forward(x):
        y = x * 1
        y.add_(10)
        return y * 1

    recording = record(Function(forward), (torch.zeros(3),), keep="all")
    assert [call.outputs[0].tensor.tolist() for call in recording.calls] == [[0.0] * 3, [10.0] * 3, [10.0] * 3]


def test_a_saved_activation_is_whole_where_a_part_of_it_was_saved_later():
    def forward(x):
        y = x * 2
        first = y[:2]
        y.zero_()
        return first

    doubled, part, zeroed = record(Function(forward), (torch.arange(500.0),), keep="all").calls
    assert torch.equal(doubled.outputs[0].tensor, 2 * torch.arange(500.0))
    assert torch.equal(part.outputs[0].tensor, torch.tensor([0.0, 2.0]))
    assert torch.equal(zeroed.outputs[0].tensor, torch.zeros(500))


def test_keeping_copies_nothing_that_is_not_overwritten():
    recording = record(Function(lambda x: (x * 2).relu()), (torch.ones(3),), keep="all")
    assert recording.calls[-1].outputs[0].tensor is recording.output


def test_reads_after_writes_through_sibling_views_see_both_writes():
    def forward(x):
        y = x * 1
        first, second = y[0], y[1]
        first.add_(1)
        second.mul_(2)
        return y * 2

    last = record(Function(forward), (torch.ones(2, 3),)).calls[-1]
    assert [write.call for write in last.args[0].writes] == [3, 4]


def test_a_write_that_does_not_overlap_is_no_parent():
    def forward(x):
        y = x * 1
        even, odd = y[::2], y[1::2]
        even.zero_()
        return odd * 2

    last = record(Function(forward), (torch.ones(6),)).calls[-1]
    assert type(last.args[0]).__name__ == "Value"


# -- observing changes nothing ---------------------------------------------------------------------------------------


def everything(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("keep", ["none", "all"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_recorded_call_is_a_plain_call(keep, grad):
    x = torch.randn(4, 3, 6, 6)
    results = []
    for traced in (False, True):
        torch.manual_seed(3)
        model = SmallConvNet().train()
        with torch.set_grad_enabled(grad):
            torch.manual_seed(7)
            out = record(model, (x,), keep=keep).output if traced else model(x)
        results.append((out, everything(model), torch.get_rng_state(), out.requires_grad))
    (plain, plain_state, plain_rng, plain_grad), (traced, state, rng, traced_grad) = results
    assert torch.equal(plain, traced)
    assert plain_grad == traced_grad == grad
    assert torch.equal(plain_rng, rng)
    assert all(torch.equal(plain_state[name], state[name]) for name in plain_state)


def test_backward_works_on_a_recorded_output():
    model = SmallConvNet().eval()
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    record(model, (x,), keep="all").output.sum().backward()
    traced = [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(traced, [x.grad, *(p.grad for p in model.parameters())], strict=True))


def test_torch_is_as_before_also_when_forward_raises():
    before = nn.Module.__call__, torch.overrides.has_torch_function, torch.add
    error = ValueError("the model's own")

    def forward(x):
        raise error

    with pytest.raises(ValueError, match="the model's own") as caught:
        record(Function(forward), (torch.ones(1),))
    assert caught.value is error
    assert (nn.Module.__call__, torch.overrides.has_torch_function, torch.add) == before
    assert record(nn.Identity(), (torch.ones(1),)).calls == []


def test_no_attribute_is_left_on_model_or_tensors():
    model, x = SmallConvNet(), torch.randn(2, 3, 6, 6)
    modules = [set(module.__dict__) for module in model.modules()]
    record(model, (x,), keep="all")
    assert [set(module.__dict__) for module in model.modules()] == modules
    assert not x.__dict__
    assert not any(parameter.__dict__ for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def numpy_state():
    return str(np.random.get_state()[1:3])  # noqa: NPY002 - models draw from the global generator


def test_nothing_is_seeded_unless_asked():
    model = nn.Linear(2, 2)
    generators = torch.get_rng_state(), random.getstate(), numpy_state()
    record(model, (torch.ones(1, 2),))
    assert torch.equal(generators[0], torch.get_rng_state())
    assert generators[1:] == (random.getstate(), numpy_state())
    draws = [record(nn.Dropout(0.5), (torch.ones(32),), seed=5).output for _ in range(2)]
    assert torch.equal(*draws)


def test_random_state_is_kept_for_draws_alone():
    def forward(x):
        return F.dropout(x, 0.5, training=False) + F.dropout(x, 0.5, training=True) + torch.rand(3)

    calls = record(Function(forward), (torch.ones(3),)).calls
    drawn = [call.info.layer_type for call in calls if call.random is not None]
    assert drawn == ["dropout", "rand"]


def test_recording_inside_a_recording_is_a_clear_error():
    inner = nn.Linear(2, 2)

    def forward(x):
        return record(inner, (x,)).output

    with pytest.raises(TraceError, match="cannot record Linear: this thread is already recording"):
        record(Function(forward), (torch.ones(1, 2),))


def test_only_modules_can_be_recorded():
    with pytest.raises(TraceError, match=r"expected a torch.nn.Module to record, got function"):
        record(lambda x: x, (torch.ones(1),))


def test_unannounced_writes_are_found():
    held = torch.zeros(3)

    def forward(x):
        y = x + held
        ctypes.memset(held.data_ptr(), 1, 4)
        return y

    assert record(Function(forward), (torch.ones(3),)).silent_writes == ["constant"]


@pytest.mark.parametrize(("writes", "found"), [(False, []), (True, ["parameter 'weight'"])])
def test_an_unannounced_write_to_a_parameter_is_found_by_its_version(writes: bool, found: list[str]):
    model = nn.Linear(2, 2)

    def write(module, args, output):
        with torch.no_grad(), torch._C.DisableTorchFunction():
            module.weight.mul_(2)

    if writes:
        model.register_forward_hook(write)
    assert record(model, (torch.ones(1, 2),)).silent_writes == found


def test_hooks_of_the_user_fire_once_and_their_steps_are_recorded():
    model = nn.Linear(2, 2)
    fired = []

    def hook(module, args, output):
        fired.append(1)
        return output * 2

    model.register_forward_hook(hook)
    recording = record(model, (torch.ones(1, 2),))
    assert fired == [1]
    assert [call.info.layer_type for call in recording.calls] == ["linear", "mul"]
    assert math.isclose(recording.output.sum().item(), model(torch.ones(1, 2)).sum().item())
