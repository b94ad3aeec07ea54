"""`rerun` on another input, and the differences of its graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        y = self.fc(x)
        return y.relu() if x.sum() > 0 else y.sigmoid().exp()


def test_rerun_on_another_input():
    model = Deciding()
    history = tl.log_forward_pass(model, torch.ones(1, 2), layers_to_save=["linear", "input"])
    again = history.rerun(torch.ones(3, 2) * 2)
    assert again.graph_differences == ()
    assert again.layer_labels == ["input_1_0", "linear_1_1"]
    assert torch.equal(again["linear_1"].tensor_contents, model.fc(torch.ones(3, 2) * 2))
    assert again["linear_1"].tensor_shape == (3, 2)


def test_rerun_says_where_the_graph_differs():
    model = Deciding()
    history = tl.log_forward_pass(model, torch.ones(1, 2))
    assert history.rerun(-torch.ones(1, 2)).graph_differences == ("sigmoid_1_4, exp_1_5 ran in place of relu_1_4",)


def test_rerun_keeps_every_option(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    saving = tl.SaveOptions(detach=True, transform=torch.neg, dtype=torch.float64, stream_to=tmp_path / "run")
    x = torch.ones(1, 2, requires_grad=True)
    history = tl.log_forward_pass(
        model, x, layers_to_save=["linear", 0], random_seed=5, save_options=saving, save_gradients=True
    )
    again, third = history.rerun(x), history.rerun(x)
    for run, folder in ((history, "run"), (again, "run-2"), (third, "run-3")):
        assert list((tmp_path / folder).glob("*.safetensors"))
        assert run.layer_labels == ["input_1_0", "linear_1_1"]
        assert run.random_seed_used == 5
        assert torch.equal(run["linear_1"].tensor_contents, -model[0](x).double())
        assert run["dropout_1"].fingerprint == history["dropout_1"].fingerprint
        run.recording.output.sum().backward()
        assert run["linear_1"].has_saved_grad


def test_rerun_with_other_options():
    model = Deciding()
    history = tl.log_forward_pass(model, torch.ones(1, 2), layers_to_save=None, random_seed=5)
    again = history.rerun(
        torch.ones(1, 2), random_seed=None, layers_to_save="linear", save_options=tl.SaveOptions(dtype=torch.float64),
        save_gradients=True,
    )  # fmt: skip
    assert again.random_seed_used is None
    assert again.layer_labels == ["linear_1_1"]
    assert again["linear_1"].tensor_contents.dtype == torch.float64
    again.recording.output.sum().backward()
    assert again["linear_1"].has_saved_grad
    assert not history.rerun(torch.ones(1, 2)).num_tensors_saved


def test_rerun_without_its_model():
    history = tl.log_forward_pass(Deciding(), torch.ones(1, 2))
    with pytest.raises(ReferenceError, match="Deciding no longer exists"):
        history.rerun(torch.ones(1, 2))


def differences(forward, first, second, *modules):
    model = Stages(forward, *modules)
    return tl.log_forward_pass(model, first).rerun(second).graph_differences


class Stages(nn.Module):
    """A model whose forward gets its modules."""

    def __init__(self, forward, *modules):
        super().__init__()
        self.stages = nn.ModuleList(modules)
        self.own = forward

    def forward(self, x):
        return self.own(x, *self.stages)


X = torch.ones(1, 2)


def inserted(x):
    y = torch.sin(x)
    z = torch.cos(y)
    if x.sum() > 0:
        z = torch.exp(z)
    z = torch.tanh(z)
    return y + z + x


def read_elsewhere(x):
    a, b = torch.sin(x), torch.cos(x)
    return (a if x.sum() > 0 else b).tanh() + a + b


def one_more(x):
    a, b = torch.sin(x), torch.cos(x)
    return torch.stack([a, b, a] if x.sum() > 0 else [a, b]).sum() + a


def steps(x, cell):
    for _ in range(3 if x.sum() > 0 else 1):
        x = cell(x)
    return x.abs()


@pytest.mark.parametrize(
    ("forward", "modules", "one_way", "back"),
    [
        pytest.param(inserted, [], "exp_1_5 came in", "exp_1_5 did not run", id="inserted"),
        pytest.param(
            read_elsewhere,
            [],
            "tanh_1_5 read sin_1_1 in place of cos_1_2",
            "tanh_1_5 read cos_1_2 in place of sin_1_1",
            id="other-parent",
        ),
        pytest.param(
            one_more, [], "stack_1_5 read sin_1_1, too", "stack_1_5 did not read sin_1_1", id="one-more-argument"
        ),
        pytest.param(
            lambda x, a, b: (a if x.sum() > 0 else b)(x),
            [nn.Linear(2, 2), nn.Linear(2, 2)],
            "linear_1_3 ran in place of linear_1_3",
            "linear_1_3 ran in place of linear_1_3",
            id="other-module",
        ),
        pytest.param(
            steps, [nn.Tanh()], "tanh_1_3:2, tanh_1_3:3 came in", "tanh_1_3:2, tanh_1_3:3 did not run", id="more-steps"
        ),
    ],
)
def test_each_difference_is_told_once(forward, modules, one_way, back):
    assert differences(forward, -X, X, *modules) == (one_way,)
    assert differences(forward, X, -X, *modules) == (back,)
    assert differences(forward, X, 2 * X, *modules) == ()
