"""Layers of several passes: labels, printing, look-up and rolled edges, as in the paper's examples."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.history import Layer
from tests.models import Function
from tests.models import RecurrentNetwork


@pytest.fixture(scope="module")
def history():
    return tl.log_forward_pass(RecurrentNetwork(), torch.rand(5, 5))


def test_printed_history(history):
    lines = str(history).splitlines()
    assert lines[1] == "\tModel structure: recurrent (at most 3 loops), without branching; 1 total module."
    assert lines[2].startswith("\t11 tensors (")
    assert lines[-11:] == [
        "\t\t0: input_1_0",
        "\t\t1: linear_1_1:1 (1/3 passes)",
        "\t\t2: add_1_2:1 (1/3 passes)",
        "\t\t3: mul_1_3:1 (1/3 passes)",
        "\t\t4: linear_1_1:2 (2/3 passes)",
        "\t\t5: add_1_2:2 (2/3 passes)",
        "\t\t6: mul_1_3:2 (2/3 passes)",
        "\t\t7: linear_1_1:3 (3/3 passes)",
        "\t\t8: add_1_2:3 (3/3 passes)",
        "\t\t9: mul_1_3:3 (3/3 passes)",
        "\t\t10: output_1_4",
    ]


def test_printed_pass(history):
    lines = str(history["linear_1_1:2"]).splitlines()
    assert lines[0] == "Layer linear_1_1 (pass 2/3), operation 5/11:"
    assert "\tParent Layers: mul_1_3:1" in lines
    assert "\tChild Layers: add_1_2:2" in lines
    assert lines[-1] == "\tLookup keys: -7, 4, fc:2, linear_1_1:2"


def test_printed_layer(history):
    lines = str(history["linear_1_1"]).splitlines()
    assert [line for line in lines if not line.startswith("\tTime elapsed: ")] == [
        "Layer linear_1_1, 3 passes:",
        "\tOutput tensor: shape=(5, 5), dtype=torch.float32, size=300 B",
        "\tParams: Computed from params with shape (5, 5), (5,); 30 params total (120 B)",
        "\tParent Layers: input_1_0 (In 1), mul_1_3 (In 2-3)",
        "\tChild Layers: add_1_2",
        "\tFunction: linear (gradfunc=AddmmBackward0)",
        "\tComputed inside module: fc:1, fc:2, fc:3",
        "\tOutput of modules: fc:1, fc:2, fc:3",
        "\tLookup keys: linear_1, linear_1_1",
        "\tPasses: linear_1_1:1, linear_1_1:2, linear_1_1:3",
    ]
    assert repr(history["linear_1_1"]) == "<linear_1_1: 3 passes>"


@pytest.mark.parametrize("key", ["linear_1_1", "linear_1", "fc"])
def test_keys_of_a_layer(history, key):
    layer = history[key]
    assert isinstance(layer, Layer)
    assert [op.layer_label_w_pass for op in layer] == ["linear_1_1:1", "linear_1_1:2", "linear_1_1:3"]


@pytest.mark.parametrize("key", ["linear_1_1:2", "linear_1:2", "fc:2", 4, -7])
def test_keys_of_a_pass(history, key):
    assert (history[key].layer_label, history[key].pass_num) == ("linear_1_1", 2)


def test_a_layer_knows_what_its_passes_share(history):
    layer = history["linear_1_1"]
    assert layer.layer_type == "linear"
    assert layer.parent_param_addresses == ("fc.weight", "fc.bias")
    assert layer.parent_layers == ("input_1_0", "mul_1_3")
    assert layer[2].pass_num == 2
    with pytest.raises(AttributeError, match=r"tensor_contents differs .* history\['linear_1_1:1'\].tensor_contents"):
        _ = layer.tensor_contents
    with pytest.raises(IndexError, match="linear_1_1: expected a pass from 1 to 3, got 4"):
        _ = layer[4]


def test_fields_of_a_pass(history):
    op = history["add_1_2:3"]
    assert (op.pass_num, op.layer_passes_total, op.operation_num, op.layer_total_num) == (3, 3, 8, 2)
    assert op.same_layer_operations == ("add_1_2:1", "add_1_2:2")
    assert op.creation_args[0] == "linear_1_1:3"
    assert history.model_is_recurrent
    assert history.model_max_recurrent_loops == 3
    assert history.num_layers == 5
    assert history.total_param_layers == 1


def test_a_feed_forward_model_is_not_recurrent():
    history = tl.log_forward_pass(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.ReLU()), torch.ones(1, 2))
    assert not history.model_is_recurrent
    assert history.model_max_recurrent_loops == 1
    assert history["relu_1"].same_layer_operations == ()


def test_passes_that_are_saved(history):
    keys = ["linear_1_1:2", "mul_1_3"]
    saved = tl.log_forward_pass(RecurrentNetwork(), torch.rand(5, 5), layers_to_save=keys)
    assert saved.layer_labels == ["mul_1_3:1", "linear_1_1:2", "mul_1_3:2", "mul_1_3:3"]


def test_rolled_edges(history):
    edges = {(edge.parent, edge.child): (edge.out_label, edge.in_label) for edge in history.rolled_edges}
    assert edges == {
        ("input_1_0", "linear_1_1"): ("", "In 1"),
        ("linear_1_1", "add_1_2"): ("", ""),
        ("add_1_2", "mul_1_3"): ("", ""),
        ("mul_1_3", "linear_1_1"): ("Out 1-2", "In 2-3"),
        ("mul_1_3", "output_1_4"): ("Out 3", ""),
    }


def test_rolled_edges_of_passes_with_gaps():
    def forward(x):
        for i in range(5):
            x = torch.cos(x)
            if i % 2 == 0:
                x = torch.sin(x)
        return x

    history = tl.log_forward_pass(Function(forward), torch.ones(2))
    edges = {(edge.parent, edge.child): edge for edge in history.rolled_edges}
    assert edges["cos_1_1", "sin_1_2"].out_label == "Out 1, 3, 5"
    assert edges["cos_1_1", "cos_1_1"].passes == ((2, 3), (4, 5))
    assert edges["sin_1_2", "output_1_3"].out_label == "Out 3"
