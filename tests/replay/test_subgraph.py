"""A part of a recorded graph runs again alone: from saved values, with others in their place, and changes nothing."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens import DecisionChangedError
from pytest_torchlens import NotReplayableError
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.replay import Player
from tests.models import Function
from tests.models import SmallConvNet
from tests.models import Squared

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2))


def history_of(function, x=X, **options):
    return tl.log_forward_pass(Function(function), x.clone(), **options)


def contents(history, *labels):
    return {label: fingerprint(history[label].tensor_contents) for label in labels}


def digests(values):
    return {label: fingerprint(tensor) for label, tensor in values.items()}


# -- what belongs to it --------------------------------------------------------------------------------------------


def test_from_a_value_to_another():
    history = tl.log_forward_pass(network(), X)
    part = history.subgraph("relu_1", "linear_2")
    assert (part.inputs, part.operations, part.outputs) == (("relu_1_2",), ("linear_2_3",), ("linear_2_3",))
    assert digests(part.run()) == contents(history, "linear_2_3")
    assert repr(part) == "<Subgraph of Sequential: 1 operations from relu_1_2 to linear_2_3>"


def test_the_whole_graph_is_what_no_key_names():
    history = tl.log_forward_pass(network(), X)
    whole = history.subgraph()
    assert whole.operations == tuple(label for label in history.layer_list if "put" not in label)
    assert (whole.inputs, whole.outputs) == (("input_1_0",), ("output_1_6",))
    assert digests(whole.run()) == contents(history, "output_1_6")


def test_a_set_of_operations_returns_what_others_read():
    history = history_of(lambda x: (x.sin() + 1) * x.sin().cos())
    part = history.subgraph(operations=["sin_1", "add_1", "sin_2"])
    assert part.inputs == ("input_1_0",)
    assert part.outputs == ("add_1_2", "sin_2_3")
    assert digests(part.run()) == contents(history, "add_1_2", "sin_2_3")


def test_what_lies_between_two_operations_of_a_set_is_read_from_the_recording():
    history = history_of(lambda x: x.sin().cos().tan())
    part = history.subgraph(operations=["sin_1", "tan_1"], end="tan_1")
    assert part.inputs == ("input_1_0", "cos_1_2")
    expected = history["cos_1"].tensor_contents.tan()
    assert torch.equal(part.run({"sin_1": 0.0})["tan_1_3"], expected)
    unsaved = history_of(lambda x: x.sin().cos().tan(), layers_to_save=None)
    with pytest.raises(NotReplayableError, match=r"cos_1_2 is read from outside .* not saved"):
        unsaved.subgraph(operations=["sin_1", "tan_1"], end="tan_1").run({"sin_1": 0.0})


def test_a_value_that_does_not_depend_on_the_start_is_read_from_the_recording():
    history = history_of(lambda x: x.sin() * x.cos())
    part = history.subgraph("sin_1")
    assert (part.inputs, part.operations) == (("sin_1_1", "cos_1_2"), ("mul_1_3",))


def test_a_layer_stands_for_all_its_passes():
    def twice(x):
        for _ in range(2):
            x = F.linear(x, torch.eye(4)).sin()
        return x

    history = history_of(twice)
    sines = [label for label in history.layer_list if label.startswith("sin")]
    part = history.subgraph(end="sin_1")
    assert list(part.outputs) == sines
    zeroed = history.subgraph().run({"sin_1": 0.0})
    assert not zeroed[history.output_layers[0]].any()


def test_unknown_and_unfitting_keys_are_named():
    history = tl.log_forward_pass(network(), X)
    with pytest.raises(tl.LookupKeyError, match="no layer 'relu_3'; did you mean 'relu_1'"):
        history.subgraph("relu_3")
    with pytest.raises(ValueError, match="linear_1_1 does not depend on 'relu_1_2'"):
        history.subgraph("relu_1", "linear_1")
    with pytest.raises(ValueError, match="'output_1_6' is an output of the model"):
        history.subgraph("output_1")
    with pytest.raises(ValueError, match="expected operations, got 'input_1_0'"):
        history.subgraph(operations=["input_1"])
    with pytest.raises(TypeError, match="operations name all that runs"):
        history.subgraph("relu_1", operations=["linear_2"])


# -- where its inputs come from ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"layers_to_save": None},
        {"layers_to_save": ["linear_1"]},
        {"save_options": tl.SaveOptions(dtype=torch.float16)},
        {"save_options": tl.SaveOptions(transform=torch.neg)},
        {"save_options": tl.SaveOptions(detach=True)},
    ],
    ids=["nothing", "one layer", "other dtype", "transformed", "detached"],
)
def test_what_was_not_saved_as_it_was_is_computed(options):
    model, other = network(), network()
    expected = contents(tl.log_forward_pass(other, X, random_seed=1), "linear_3_5")
    history = tl.log_forward_pass(model, X, random_seed=1, **options)
    assert digests(history.subgraph("relu_1", "linear_3").run()) == expected


def test_what_was_streamed_is_read_from_the_disk(tmp_path):
    history = tl.log_forward_pass(network(), X, save_options=tl.SaveOptions(stream_to=tmp_path / "acts"))
    part = history.subgraph("linear_2", "linear_3")
    assert torch.equal(part.run()["linear_3_5"], history["linear_3"].tensor_contents)


def test_a_saved_activation_that_was_changed_since_is_not_used():
    history = tl.log_forward_pass(network(), X, random_seed=1)
    expected = contents(history, "linear_3_5")
    with torch.no_grad():
        history["linear_2"].tensor_contents.zero_()
    assert digests(history.subgraph("linear_2", "linear_3").run()) == expected


def test_parameters_and_inputs_must_be_those_of_the_pass():
    model, x = network(), X.clone()
    history = tl.log_forward_pass(model, x)
    with torch.no_grad():
        model[4].weight.mul_(2)
    with pytest.raises(NotReplayableError, match=r"parameter '4\.weight' was changed after the pass was recorded"):
        history.subgraph().run()
    assert history.subgraph(end="linear_2").run()
    assert history.subgraph().run({"4.weight": torch.zeros(2, 6)})
    x.zero_()
    with pytest.raises(NotReplayableError, match="input '0' was changed"):
        history.subgraph(end="linear_2").run()


# -- swaps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [0.5, torch.full((3, 6), 0.5), lambda t: t * 0 + 0.5], ids=["number", "tensor", "f"])
def test_a_swap_equals_a_hook(new):
    model = network().eval()
    history = tl.log_forward_pass(model, X)
    handle = model[1].register_forward_hook(lambda *_: torch.full((3, 6), 0.5))
    expected = model(X)
    handle.remove()
    assert torch.equal(history.subgraph().run({"relu_1": new})["output_1_6"], expected)


def test_only_what_a_swap_reaches_and_an_output_needs_runs(monkeypatch):
    ran, play = [], Player.play
    monkeypatch.setattr(Player, "play", lambda self, number, *rest: (ran.append(number), play(self, number, *rest))[1])
    history = tl.log_forward_pass(network(), X)
    history.subgraph().run({"linear_2": 0.0})
    assert ran == [3, 4]
    ran.clear()
    history.subgraph().run({"linear_2": torch.neg, "linear_3": 1.0})
    assert ran == []
    history.subgraph(end=["linear_1", "dropout_1"]).run({"relu_1": 0.0})
    assert ran == [2, 3]


def test_inputs_buffers_and_parameters_can_be_swapped():
    model = SmallConvNet().eval()
    x = torch.rand(2, 3, 8, 8)
    history = tl.log_forward_pass(model, x)
    other = torch.rand(2, 3, 8, 8)
    whole, (output,) = history.subgraph(), history.output_layers
    assert torch.equal(whole.run({"input_1": other})[output], model(other))
    name, parameter = next(iter(model.named_parameters()))
    swapped = whole.run({name: lambda weight: weight * 2})[output]
    with torch.no_grad():
        parameter.mul_(2)
    assert torch.equal(swapped, model(x))


def test_statistics_of_a_module_in_training_stay_as_they_are():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    history = tl.log_forward_pass(model, X)
    before = {name: fingerprint(tensor) for name, tensor in model.state_dict().items()}
    assert digests(history.subgraph().run()) == contents(history, *history.output_layers)
    history.subgraph().run({"linear_1": 0.0})
    assert before == {name: fingerprint(tensor) for name, tensor in model.state_dict().items()}


def test_random_operations_draw_the_recorded_numbers():
    model = network()
    history = tl.log_forward_pass(model, X, random_seed=3)
    state = fingerprint(torch.get_rng_state())
    doubled = history.subgraph(end="dropout_1").run({"linear_2": lambda t: t * 2})["dropout_1_4"]
    assert torch.equal(doubled, history["dropout_1"].tensor_contents * 2)
    assert fingerprint(torch.get_rng_state()) == state


@pytest.mark.parametrize(
    ("new", "error", "message"),
    [
        (torch.zeros(2), ValueError, r"swap of relu_1_2: expected float32\[3, 6\] on cpu, got float32\[2\] on cpu"),
        (torch.zeros(3, 6).double(), ValueError, "got float64"),
        (lambda t: t[0], ValueError, r"got float32\[6\]"),
        (lambda t: None, TypeError, "expected a tensor from the function, got NoneType"),
        ("zero", TypeError, "expected a number, a tensor or a function, got str"),
        (1j, TypeError, "1j does not fit float32"),
    ],
)
def test_a_swap_that_does_not_fit_is_refused(new, error, message):
    history = tl.log_forward_pass(network(), X)
    with pytest.raises(error, match=message):
        history.subgraph().run({"relu_1": new})


def test_a_swap_outside_of_the_subgraph_is_refused():
    history = tl.log_forward_pass(network(), X)
    with pytest.raises(ValueError, match="'linear_1_1' is neither an input nor an operation of <Subgraph"):
        history.subgraph("relu_1").run({"linear_1": 0.0})
    with pytest.raises(tl.LookupKeyError, match=r"no layer '4\.wait'.*; parameters: .*4\.weight"):
        history.subgraph().run({"4.wait": 0.0})


def branches(x):
    y = x.sin()
    return y.cos() if y.sum() > 0.5 else y.tan()


def test_a_swap_that_changes_a_decision_is_refused():
    history = history_of(branches)
    with pytest.raises(DecisionChangedError, match=r"__bool__ of gt_1_3 gave False then, and True now, at "):
        history.subgraph().run({"sin_1": 1.0})
    assert history.subgraph().run({"sin_1": 0.0})
    going_on = history.subgraph().run({"sin_1": 1.0}, check_decisions=False)
    assert torch.equal(going_on[history.output_layers[0]], torch.ones(3, 4).tan())


def test_a_decision_after_the_end_does_not_matter():
    history = history_of(lambda x: branches(x.neg()))
    assert history.subgraph(end="sin_1").run({"neg_1": 1.0})


def test_numbers_that_python_read_are_decisions():
    history = history_of(lambda x: x.sin() * x.max().item())
    with pytest.raises(DecisionChangedError, match=r"item of max_1_\d gave 1.0 then, and 2.0 now"):
        history.subgraph().run({"input_1": lambda x: x * 2})


def writes_through_a_view(x):
    y = x * 2
    first = y[0]
    first.zero_()
    return y.cos() + first.sum()


def test_a_write_through_a_view_reaches_what_shares_its_memory():
    history = history_of(writes_through_a_view)
    changed = history.subgraph().run({"zero_1": 1.0})[history.output_layers[0]]
    y = X * 2
    y[0] = 1
    assert torch.equal(changed, y.cos() + y[0].sum())


def test_a_view_that_is_written_through_cannot_be_swapped_alone():
    history = history_of(writes_through_a_view)
    with pytest.raises(NotReplayableError, match=r"cos_1_4 reads memory .*; change the operation that"):
        history.subgraph().run({"getitem_1": 1.0})


def test_results_are_as_they_were_made_though_they_are_overwritten_later():
    history = tl.log_forward_pass(network(), X, random_seed=1)
    part = history.subgraph(end=["linear_1", "relu_1"])
    assert digests(part.run()) == contents(history, "linear_1_1", "relu_1_2")
    swapped = part.run({"linear_1": -1.0})
    assert (swapped["linear_1_1"] == -1).all()
    assert not swapped["relu_1_2"].any()


def test_tensors_of_the_caller_are_not_written_to():
    given = torch.full((3, 6), 2.0)
    history = tl.log_forward_pass(network().eval(), X)
    saved = contents(history, *history.layer_labels)
    history.subgraph().run({"linear_1": given})  # a ReLU writes over it
    history.subgraph("linear_1").run()
    assert (given == 2).all()
    assert contents(history, *history.layer_labels) == saved


def test_gradients_flow_to_a_swap():
    model = network().eval()
    history = tl.log_forward_pass(model, X)
    edit = torch.zeros(3, 6, requires_grad=True)
    history.subgraph().run({"linear_1": edit})["output_1_6"].sum().backward()
    assert edit.grad.shape == (3, 6)
    by_hook = torch.full((3, 6), 0.5, requires_grad=True)
    history.subgraph().run({"linear_1": by_hook})["output_1_6"].sum().backward()
    expected = torch.autograd.grad(model[2:](by_hook.relu()).sum(), by_hook)[0]
    assert torch.equal(by_hook.grad, expected)


# -- kinds of operations -------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x):
        _, (hidden, cell) = self.lstm(x[None])
        return hidden + cell


def takes_a_gradient(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = x.sin()
        (slope,) = torch.autograd.grad((y * y).sum(), x)
    return slope * 2


def goes_backward(x):
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        leaf.sin().sum().backward()
    return leaf.grad * 2


@torch.jit.script
def scripted(x):
    return x.sin() + 1


def half_cast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ x.T).float().sin()


KINDS = {
    "several results": Recurrent(),
    "gradient": Function(takes_a_gradient),
    "backward": Function(goes_backward),
    "opaque": Function(lambda x: scripted(x) * 2),
    "custom": Function(lambda x: Squared.apply(x.sin()) + 1),
    "autocast": Function(half_cast),
    "list": Function(lambda x: torch.cat(x.chunk(2, 1)[::-1], 1).sin()),
    "written input": Function(lambda x: x.mul_(2).sin() + x),
    "uninitialised": Function(lambda x: torch.empty(3, 4).copy_(x).sin()),
    "sparse": Function(lambda x: x.to_sparse().mul(2).to_dense()),
}


@pytest.mark.parametrize("grad", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_is_bit_equal(kind, grad):
    if kind in ("gradient", "backward") and grad is torch.inference_mode:
        pytest.skip("PyTorch takes no gradients in inference mode")
    model, x = KINDS[kind], X.clone()
    with grad():
        history = tl.log_forward_pass(model, x)
    gradients = [parameter.grad for parameter in model.parameters()]
    made = [node for node in history.nodes if node.kind == "operation"]
    for node in made:
        if node.number not in history.recording.uninitialised:
            assert fingerprint(history.subgraph(end=node.label).run()[node.label]) == node.value.fingerprint
            alone = history.subgraph(operations=[node.label], end=node.label)
            assert fingerprint(alone.run()[node.label]) == node.value.fingerprint
    assert digests(history.subgraph().run()) == contents(history, *history.output_layers)
    assert gradients == [parameter.grad for parameter in model.parameters()]


def test_code_inside_a_gradient_is_refused():
    def hooked(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            z = y.sin()
            z.register_hook(lambda gradient: gradient * 3)
            return torch.autograd.grad(z.sum(), y)[0]

    history = history_of(hooked)
    with pytest.raises(NotReplayableError, match="grad_1"):
        history.subgraph().run()


def test_the_model_need_not_live_any_more():
    history = tl.log_forward_pass(network(), X)
    assert history.recording.model() is None
    assert digests(history.subgraph().run()) == contents(history, "output_1_6")


def test_a_part_that_begins_with_a_view_of_written_memory():
    def forward(x):
        a = x * 1
        a[2:5].add_(1)
        view = a[:4]
        return view[:2] * 2

    x = torch.rand(8)
    history = tl.log_forward_pass(Function(forward), x, layers_to_save="all")
    for first in ("getitem_2_4", "getitem_3_5"):
        (result,) = history.subgraph(start=first, end="mul_2_6").run().values()
        assert torch.equal(result, x[:2] * 2)
    (swapped,) = history.subgraph(start="getitem_3_5", end="mul_2_6").run({"getitem_3_5": 3.0}).values()
    assert swapped.tolist() == [6.0, 6.0]


def test_a_swap_that_changes_a_size_is_a_changed_decision():
    history = tl.log_forward_pass(Function(lambda x: (x * 2)[x * 2 > 1] + 0), torch.ones(3), layers_to_save="all")
    with pytest.raises(DecisionChangedError, match=r"getitem_1_\d has shape \(0,\) now, \(3,\) then"):
        history.subgraph().run({"gt_1_3": torch.zeros(3, dtype=torch.bool)})
    (result,) = history.subgraph().run({"gt_1_3": torch.zeros(3, dtype=torch.bool)}, check_decisions=False).values()
    assert result.shape == (0,)


def test_a_swap_does_not_write_into_memory_of_the_user():
    def forward(x):
        for _ in range(2):
            fresh = x * 1
            fresh.data = x.detach()
        return fresh + 1

    x = torch.ones(3)
    history = tl.log_forward_pass(Function(forward), x, layers_to_save="all")
    labels = [operation.label for operation in history.operations if operation.layer_type == "data"]
    for label in labels:
        with contextlib.suppress(NotReplayableError):
            history.subgraph().run({label: 5.0})
        assert x.tolist() == [1.0, 1.0, 1.0]
