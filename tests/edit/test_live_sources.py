"""Constants, inputs in objects, gradients and changed models in a live edited pass."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.capture import ambient
from tests.models import Function

X = torch.linspace(-1.0, 2.0, 8).reshape(2, 4)
OUTSIDE = nn.Parameter(torch.arange(4.0))


class Box:
    def __init__(self, tensor):
        self.tensor = tensor


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.constant = torch.arange(4.0)

    def forward(self, x):
        return x * self.constant


def output(history):
    return history[history.output_layers[0]].tensor_contents


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


SOURCES = {
    "a plain tensor of the model": (Holds(), X, "constant_1"),
    "a parameter outside the model": (Function(lambda x: x * OUTSIDE), X, "constant_1"),
    "a tensor in an object": (Function(lambda box: box.tensor * 2 + 0), Box(X), "input_1"),
}


@pytest.mark.parametrize(("model", "argument", "key"), SOURCES.values(), ids=SOURCES)
def test_a_source_is_edited_live_as_in_a_replay(model, argument, key):
    history = tl.log_forward_pass(model, (argument,))
    replayed, live = (history.edit({key: 3.0}, live=way) for way in (False, True))
    assert torch.equal(output(replayed), output(live))
    assert torch.equal(replayed[key].tensor_contents, live[key].tensor_contents)
    assert not torch.equal(output(history), output(live))


def test_operations_inside_functions_of_pytorch_are_edited_live():
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    history = tl.log_forward_pass(attention, (X[None], X[None], X[None]))
    labels = [op.label for op in history if op.func_applied is not None and op.tensor_dtype.endswith("float32")]
    assert any(label.startswith("softmax") for label in labels)
    for label in labels:
        replayed, live = (history.edit({label: 0.5}, live=way) for way in (False, True))
        assert torch.equal(output(replayed), output(live)), label


@pytest.mark.parametrize("live", [False, True])
def test_gradients_flow_through_an_edited_input(live):
    x, model = X.clone().requires_grad_(), net()
    history = tl.log_forward_pass(model, x)
    output(history.edit(inputs={"input": lambda t: t * 2}, live=live)).sum().backward()
    found, x.grad = x.grad, None
    model(x * 2).sum().backward()
    assert torch.equal(found, x.grad)


@pytest.mark.parametrize("live", [False, True])
def test_the_gradient_of_an_input_is_edited(live):
    x, model = X.clone().requires_grad_(), net()
    edited = tl.log_forward_pass(model, x).edit(gradients={"input_1": 7.0}, live=live)
    output(edited).sum().backward()
    assert torch.equal(x.grad, torch.full_like(X, 7.0))


@pytest.mark.parametrize("live", [False, True])
def test_a_value_and_parts_of_its_gradient_are_edited_together(live):
    x, model = X.clone().requires_grad_(), net()
    history = tl.log_forward_pass(model, x)
    gradients = {tl.Part("linear_1")[0]: 0.0, tl.Part("linear_1")[1]: lambda gradient: gradient * 3}
    edited = history.edit({"linear_1": lambda t: t + 1}, gradients=gradients, live=live)
    output(edited).sum().backward()
    assert [each.change for each in edited.edits] == [
        "a function",
        "0.0 as its gradient at [0]",
        "a function as its gradient at [1]",
    ]
    found, x.grad = x.grad, None
    hidden = model[0](x) + 1
    hidden.register_hook(lambda gradient: gradient * torch.tensor([[0.0], [3.0]]))
    model[2](model[1](hidden)).sum().backward()
    assert torch.equal(found, x.grad)


def test_gradient_edits_that_overlap_or_have_no_gradient_are_refused():
    model, x = net(), X.clone().requires_grad_()
    history = tl.log_forward_pass(model, x)
    with pytest.raises(ValueError, match="gradient of linear_1_1 is edited twice: as a whole, and"):
        history.edit(gradients={"linear_1": 0.0, tl.Part("linear_1")[0]: 1.0})
    with pytest.raises(ValueError, match=r"gradient of linear_1_1 \[:1, 2\] is edited twice"):
        history.edit(gradients={tl.Part("linear_1")[0]: 0.0, tl.Part("linear_1")[:1, 2]: 1.0})
    with pytest.raises(ValueError, match="gradient of linear_1_1: it has none, as another edit put a tensor there"):
        history.edit({"linear_1": 0.0}, gradients={"linear_1": 1.0}, live=True)


@pytest.mark.parametrize(("change", "name"), [("weight", "parameter '2.weight'"), ("input", "input '0'")])
def test_a_live_pass_warns_of_what_changed_since_the_recorded_one(change, name):
    model, x = net(), X.clone()
    history = tl.log_forward_pass(model, x)
    with torch.no_grad():
        (model[2].weight if change == "weight" else x).add_(1)
    with pytest.warns(UserWarning, match=f"edit: {name} has changed since the recorded pass") as caught:
        history.edit({"linear_1": lambda t: t}, live=True)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    ("edits", "values"),
    [({"relu_1": 1.0}, [1.0] * 5), ({"relu_1:1": 1.0, "relu_1:2": 2.0}, [1.0, 2.0, 5.0])],
    ids=["one key", "a key each"],
)
def test_further_passes_are_edited_where_one_key_names_all_of_them(edits, values):
    def until_large(x):
        count = 0
        while x.sum() < 40 and count < 5:
            x, count = torch.relu(x + 3), count + 1
        return x

    model = Function(until_large)
    history = tl.log_forward_pass(model, X)
    assert history["relu_1"].layer_passes_total == 2
    edited = history.edit(edits, live=True)
    assert [one.tensor_contents[0, 0].item() for one in edited["relu_1"]] == values


class Keeps(nn.Module):
    """Keeps a running sum between its calls, as an attribute, a buffer or in a list, and reads it behind an edit."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(4, 4), how
        if how == "buffer":
            self.register_buffer("state", torch.zeros(4))
        else:
            self.state = [torch.zeros(4)] if how == "list" else torch.zeros(4)

    def forward(self, x):
        y = self.linear(x)
        kept = self.state[-1] if self.how == "list" else self.state
        if self.how == "write":
            self.state += x.mean(0)
        elif self.how == "list":
            self.state.append(kept + x.mean(0))
        else:
            self.state = kept + x.mean(0)
        return torch.relu(y + kept)


@pytest.mark.parametrize("how", ["attribute", "buffer", "list"])
def test_a_live_pass_warns_of_a_tensor_that_the_model_has_replaced(how):
    model = Keeps(how)
    history = tl.log_forward_pass(model, X)
    with pytest.warns(UserWarning, match="reads 'state', which holds something else than in the recorded pass"):
        history.edit({"linear_1": lambda t: t * 2}, live=True)


def test_a_live_pass_begins_with_the_contents_that_the_recorded_one_began_with():
    model = Keeps("write")
    history = tl.log_forward_pass(model, X)
    live, replayed = (history.edit({"linear_1": lambda t: t * 2}, live=live) for live in (True, False))
    assert torch.equal(output(live), output(replayed))


class FillsMemory(nn.Module):
    """Fills memory of torch.empty in pieces: through views, by index, or as PyTorch's AdaptiveLogSoftmaxWithLoss."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(4, 4), how
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3])

    def forward(self, x):
        y = self.linear(x)
        if self.how == "module":
            return self.softmax(y, torch.tensor([1, 7])).output
        memory = y.new_empty(2, 4)
        if self.how == "views":
            memory[:1].copy_(y[:1])
            memory.view(-1)[4:].copy_(y[1])
        else:
            memory[0] = y[0]
            memory.index_copy_(0, torch.tensor([1]), y[1:])
        return memory * 2


@pytest.mark.parametrize("how", ["views", "index", "module"])
def test_memory_that_is_filled_in_pieces_is_no_change_of_the_model(how, recwarn):
    model = FillsMemory(how)
    history = tl.log_forward_pass(model, X)
    for number in range(5):
        for size in (2, 8):  # what was freed is found again in new memory
            del [torch.full((size,), float(number)) for _ in range(200)][:]
        history.edit({"linear_1": lambda t: t}, live=True)
    assert [str(warning.message) for warning in recwarn if "edit" in str(warning.message)] == []


def _out_argument(y):
    memory = torch.empty(3, 4)
    torch.mul(y, 2, out=memory[:2])
    torch.add(y[0], 1, out=memory[2])
    return memory * 3


def _grown(y):
    memory = torch.empty(0)
    torch.sin(y, out=memory)
    return memory + 1


def _like(y):
    memory = torch.empty_like(y)
    halves = memory.view(2, 2, 2)
    halves[:, 0] = y[:, :2]
    halves[:, 1] = y[:, 2:].exp()
    return memory - y


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("fill", [_out_argument, _grown, _like])
def test_edits_before_and_in_memory_that_the_model_fills(fill):
    linear = nn.Linear(4, 4)
    model = Function(lambda x: fill(linear(x)))
    with torch.no_grad():
        history = tl.log_forward_pass(model, X)
        expected = fill(linear(X) * 2)
    written = next(op.label for op in history if op.label.startswith(("mul", "sin", "setitem")))
    for live in (False, True):
        assert torch.equal(output(history.edit({"linear_1": lambda t: t * 2}, live=live)), expected)
    replayed, live = (output(history.edit({written: 0.5}, live=live)) for live in (False, True))
    assert torch.equal(replayed, live)
    assert not torch.equal(replayed, output(history))


@contextlib.contextmanager
def _float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS = {
    "gradients": (torch.no_grad, nn.TransformerEncoderLayer(4, 2, batch_first=True).eval(), X[None], 1),
    "autocast": (lambda: torch.autocast("cpu", dtype=torch.bfloat16), net(), X, "relu_1"),
    "inference mode": (torch.inference_mode, net(), X, "relu_1"),
    "dtype": (_float64, Function(lambda x: (x * torch.ones(4)).sin()), X, "mul_1"),
}


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(("settings", "model", "x", "key"), SETTINGS.values(), ids=SETTINGS)
def test_a_live_pass_runs_under_the_settings_of_the_recorded_one(settings, model, x, key):
    with settings():
        history = tl.log_forward_pass(model, x)
    before = ambient.current()
    replayed, live = (output(history.edit({key: lambda t: t * 2}, live=live)) for live in (False, True))
    assert torch.equal(replayed, live)
    assert replayed.dtype == live.dtype
    assert ambient.current() == before


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    "through_python",
    [
        lambda y: torch.full((4,), y.max().item()),
        lambda y: torch.tensor(y.tolist()),
        lambda y: torch.from_numpy(y.numpy() * 2) + 1,
    ],
    ids=["number", "list", "array"],
)
def test_what_an_edit_changes_through_python_is_no_change_of_the_model(through_python):
    linear = nn.Linear(4, 4)
    model = Function(lambda x: through_python(linear(x).detach()))
    history = tl.log_forward_pass(model, X)
    edited = history.edit({"linear_1": lambda t: t + 2}, live=True)
    assert torch.equal(output(edited), through_python(linear(X).detach() + 2))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_model_with_a_scripted_module_is_edited_live_and_stays_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.BatchNorm1d(4)), nn.ReLU())
    history = tl.log_forward_pass(model, X)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    live = history.edit({"0": lambda t: t * 2}, live=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(output(live), output(history.edit({"0": lambda t: t * 2})))


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("key", ["input_1", "linear_1", "relu_1"])
@pytest.mark.parametrize("saved", ["all", None])
def test_the_function_of_an_edit_runs_under_the_settings_of_the_pass(key, saved, live):
    model = net()
    history = tl.log_forward_pass(model, X, layers_to_save=saved)
    seen = []
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        history.edit({key: lambda t: (seen.append(ambient.current()), t * 2)[1]}, live=live)
    assert seen == [ambient.current()]
