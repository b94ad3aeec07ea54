"""The same model again, on another input, and where its graph then differs."""

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
    with pytest.raises(ReferenceError, match="Deciding is gone"):
        history.rerun(torch.ones(1, 2))
