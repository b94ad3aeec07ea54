"""A part of a recorded graph becomes a module of `torch.fx`: bit-equal, in eager mode and compiled, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens import NotExportableError
from pytest_torchlens.capture import fingerprint
from tests.models import Function
from tests.models import SmallConvNet
from tests.models import Squared

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Recurrent(nn.Module):
    """An LSTM, a cell in a loop, an embedding; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True)
        self.cell = nn.GRUCell(8, 8)

    def forward(self, tokens):
        every, (hidden, cell) = self.lstm(self.embedding(tokens))
        state = every[:, 0]
        for step in range(every.shape[1]):
            state = self.cell(every[:, step], state)
        return state + hidden[-1], cell


class Branches(nn.Module):
    """Two branches of the graph, views of both sides, a list, writes in place, a property, operators on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 6))

    def forward(self, x):
        hidden = self.linear(x) * self.scale
        left, right = hidden[:, :3], hidden.chunk(2, dim=1)[1] * 2
        left = left.relu_() + torch.arange(3)
        right[:, 0] = 2.0
        values, places = right.T.sort(dim=0, descending=True)
        joined = torch.cat([1 - left, values.T[:, :, None].squeeze(-1)], dim=1)
        return 1 / (joined + hidden.flatten(1)), places


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


_DRAWS = torch.Generator().manual_seed(0)
SMALL = {
    "encoder": (encoder, torch.rand(2, 5, 16, generator=_DRAWS)),
    "recurrent": (Recurrent, torch.randint(0, 10, (2, 5), generator=_DRAWS)),
    "branches": (Branches, X),
    "convolution": (SmallConvNet, torch.rand(2, 3, 8, 8, generator=_DRAWS)),
}
BACKENDS = dict.fromkeys(SMALL, "aot_eager") | {"recurrent": "eager"}
"""Of torch.compile: aot_eager computes LSTM and GRUCell in steps of its own, which round otherwise for some inputs."""


def recorded(build, x, train=False, grad=False):
    torch.manual_seed(0)
    model = build().train(train)
    with torch.set_grad_enabled(grad):
        return model, tl.log_forward_pass(model, x, random_seed=1)


def check(model, history, x, backend="aot_eager"):
    """Export the whole pass, and compare it with the recording."""
    module = history.subgraph().to_fx()
    expected = [fingerprint(history[label].tensor_contents) for label in history.output_layers]
    grad = history.recording.ambient.rows[0][0]
    ways = [module, torch.compile(module, backend=backend, fullgraph=True)] if backend else [module]
    for call in ways:
        torch.manual_seed(1)
        with torch.set_grad_enabled(grad):
            result = call(x)
        assert [fingerprint(one) for one in (result if isinstance(result, tuple) else (result,))] == expected
    assert {name for name, _ in module.named_parameters()} <= {name for name, _ in model.named_parameters()}
    return module


@pytest.fixture(autouse=True)
def _compiles_anew():
    torch._dynamo.reset()


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", SMALL)
def test_small_models_are_bit_equal(name, train):
    build, x = SMALL[name]
    model, history = recorded(build, x, train)
    before = {name: fingerprint(tensor) for name, tensor in model.state_dict().items()}
    check(model, history, x, BACKENDS[name])
    assert before == {name: fingerprint(tensor) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_those_of_the_model(name):
    build, x = SMALL[name]
    model, history = recorded(build, x, grad=True)
    module = check(model, history, x, backend=None)
    weights = dict(model.named_parameters())
    results = [module(x), model(x)]
    mine, own = (
        torch.autograd.grad(sum(one.sum() for one in _floating(result)), list(weights.values())) for result in results
    )
    assert all(map(torch.equal, mine, own))


def _floating(result):
    return [one for one in (result if isinstance(result, tuple) else (result,)) if one.is_floating_point()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_large", "swin_t"])
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_torchvision_is_bit_equal(name, train):
    models = pytest.importorskip("torchvision.models")
    x = torch.rand(2, 3, 64, 64)
    model, history = recorded(lambda: getattr(models, name)(weights=None), x, train)
    check(model, history, x)


def test_names_of_nodes_and_attributes_are_those_of_the_history():
    model, history = recorded(SmallConvNet, torch.rand(2, 3, 8, 8))
    module = history.subgraph().to_fx()
    labels = [node.meta["label"] for node in module.graph.nodes if "label" in node.meta]
    assert labels == history.layer_list[:-1]
    assert {name for name, _ in module.named_parameters()} == {name for name, _ in model.named_parameters()}
    assert module.get_buffer("norm.running_mean") is model.norm.running_mean
    assert module.conv.weight is model.conv.weight


def test_a_part_begins_at_a_later_pass_of_a_layer():
    layer = nn.Linear(4, 4)
    x = torch.rand(2, 4)

    def repeated(x):
        for _ in range(3):
            x = layer(x).relu()
        return x

    history = tl.log_forward_pass(Function(repeated), x)
    module = history.subgraph("relu_1:1", "relu_1:2").to_fx()
    [name] = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    assert name == "relu_1_2_1"
    assert torch.equal(module(history["relu_1:1"].tensor_contents), history["relu_1:2"].tensor_contents)


def test_a_part_takes_its_inputs_and_leaves_them_as_they_are():
    _, history = recorded(SmallConvNet, torch.rand(2, 3, 8, 8))
    part = history.subgraph("batchnorm_1", ["relu_1", "linear_1"])
    module = part.to_fx()
    given = history["batchnorm_1"].tensor_contents
    before = fingerprint(given)
    relu, linear = module(given)
    assert torch.equal(relu, history["relu_1"].tensor_contents)
    assert torch.equal(linear, history["linear_1"].tensor_contents)
    assert fingerprint(given) == before


def test_a_value_that_is_overwritten_later_is_returned_as_it_was():
    _, history = recorded(SmallConvNet, torch.rand(2, 3, 8, 8))
    part = history.subgraph("conv2d_1", ["batchnorm_1", "relu_1"])
    norm, _ = part.to_fx()(history["conv2d_1"].tensor_contents)
    assert torch.equal(norm, history["batchnorm_1"].tensor_contents)


CONSTANT = torch.linspace(0, 1, 4)


def test_a_constant_is_an_attribute():
    history = tl.log_forward_pass(Function(lambda x: x + CONSTANT), X)
    part = history.subgraph()
    module = part.to_fx()
    assert len(part.inputs) == 2
    assert [node.meta["label"] for node in module.graph.nodes if node.op == "placeholder"] == ["input_1_0"]
    assert torch.equal(module(X), X + CONSTANT)
    assert list(module.state_dict()) == ["constant_0"]


def test_without_gradients_is_without_gradients():
    def partly(x):
        with torch.no_grad():
            y = x * 2
        return x * y

    history = tl.log_forward_pass(Function(partly), X.clone().requires_grad_())
    x = X.clone().requires_grad_()
    history.subgraph().to_fx()(x).sum().backward()
    assert torch.equal(x.grad, X * 2)


@torch.jit.script
def scripted(x):
    return x.sin() + 1


def with_settings(x):
    y = x @ x.T
    with torch.autocast("cpu", torch.bfloat16):
        return y @ y


def takes_a_gradient(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(x.sin().sum(), x)[0]


REFUSED = {
    "opaque": (scripted, r"scripted_1_1 cannot be exported: its inside was not recorded"),
    "custom": (lambda x: Squared.apply(x.sin()), r"mul_1_2 cannot be exported: it is a step of .* function Squared"),
    "truth test": (
        lambda x: x.sin() if x.sum() > -5 else x,
        r"gt_1_\d cannot .*: Python reads it \(__bool__\) at ",
    ),
    "number": (lambda x: x * x.max().item(), r"max_1_1 cannot be exported: Python reads it \(item\)"),
    "gradient": (takes_a_gradient, r"grad_1_\d cannot be exported: it needs the autograd graph"),
    "settings": (with_settings, r"matmul_2_\d cannot be exported: it ran with autocast cpu bfloat16"),
    "generator": (
        lambda x: x + torch.rand(4, generator=torch.Generator()),
        "rand_1_1 cannot be exported: an argument is of class Generator",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_is_refused_by_name_and_reason(name):
    function, message = REFUSED[name]
    history = tl.log_forward_pass(Function(function), X)
    with pytest.raises(NotExportableError, match=message):
        history.subgraph().to_fx()


def test_a_part_without_the_refused_operation_is_exported():
    history = tl.log_forward_pass(Function(lambda x: scripted(x).cos().tan()), X)
    module = history.subgraph("cos_1").to_fx()
    assert torch.equal(module(torch.ones(3, 4)), torch.ones(3, 4).tan())


def test_memory_that_was_written_before_the_part_is_refused():
    def written(x):
        y = x * 2
        y[0].zero_()
        return y.cos()

    history = tl.log_forward_pass(Function(written), X)
    with pytest.raises(NotExportableError, match=r"cos_1_4 .*: it reads memory that zero_1_3 wrote, which is outside"):
        history.subgraph(operations=["cos_1"]).to_fx()
