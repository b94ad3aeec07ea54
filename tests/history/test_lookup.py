"""Keys that match several operations: labels, short labels, modules, modules with several outputs, odd addresses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl


class Named(nn.Module):
    """Modules under given names; `forward` finds them by name."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.inner = nn.ModuleDict(modules)
        self._forward = forward

    def forward(self, x):
        return self._forward(self.inner, x)


def both(history, folder):
    history.save(folder)
    return history, tl.load(folder)


X = torch.ones(2, 4)


def test_a_label_stays_a_key_where_a_module_has_that_name(tmp_path):
    model = nn.Sequential()
    model.add_module("first", nn.ReLU())
    model.add_module("relu_1_1", nn.Linear(4, 4))
    model.add_module("linear_2", nn.Linear(4, 4))
    model.add_module("linear_1", nn.Linear(4, 4))
    for asked in both(tl.log_forward_pass(model, X), tmp_path / "h"):
        assert [asked[label].label for label in asked.layer_list] == list(asked.layer_list)
        assert asked["relu_1_1:1"].label == "relu_1_1"
        assert asked.ancestors("relu_1_1") == ("input_1_0",)
        assert all(asked[key] is op for op in asked.operations for key in op.lookup_keys)
        with pytest.raises(tl.LookupKeyError, match="'linear_1' matches several layers; name one of linear_1_2, lin"):
            asked["linear_1"]
        assert "linear_1" not in asked


@pytest.mark.parametrize("wanted", ["inner.rnn", "inner.rnn:1", ["inner.rnn"]])
def test_all_outputs_of_a_module_are_saved(wanted):
    model = Named(lambda inner, x: inner.rnn(x[None])[0].relu(), rnn=nn.LSTM(4, 4))
    history = tl.log_forward_pass(model, X, layers_to_save=wanted)
    assert history.layer_labels == ["lstm_1_4", "lstm_2_5", "lstm_3_6"]
    assert [op.label for op in history.operations if op.tensor_contents is not None] == history.layer_labels
    with pytest.raises(tl.LookupKeyError, match="several layers; name one of lstm_1_4, lstm_2_5"):
        history["inner.rnn"]


def test_addresses_with_colons(tmp_path):
    modules = {"a:b": nn.Linear(4, 4), "a": nn.ReLU(), "c:1": nn.Tanh()}
    model = Named(lambda inner, x: inner["c:1"](inner["a"](inner["a:b"](inner["a:b"](x)))), **modules)
    histories = both(tl.log_forward_pass(model, X), tmp_path / "h")
    for asked in histories:
        assert asked["inner.a:b"].layer_label == "linear_1_1"
        assert asked["inner.a:b:2"].label == "linear_1_1:2"
        assert asked["inner.a"].label == "relu_1_2"
        assert asked["inner.c:1"].label == "tanh_1_3"
        assert [op.label for op in asked.find(module="inner.a")] == ["relu_1_2"]
        assert [op.label for op in asked.find(module="inner.a:b")] == ["linear_1_1:1", "linear_1_1:2"]
        assert [op.label for op in asked.find(module="inner.a:b:2")] == ["linear_1_1:2"]
        assert [op.label for op in asked.find(module="inner.c:1")] == ["tanh_1_3"]
    merged = histories[0].merge(histories[1])
    assert merged.only_first == merged.only_second == ()
