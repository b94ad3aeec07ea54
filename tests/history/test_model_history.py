"""Labels, printing, indexing and selecting, as in the examples of the paper's READMEs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from tests.models import DemoNetwork
from tests.models import Function

ALEXNET = """input_1_0 conv2d_1_1 relu_1_2 maxpool2d_1_3 conv2d_2_4 relu_2_5 maxpool2d_2_6 conv2d_3_7 relu_3_8
conv2d_4_9 relu_4_10 conv2d_5_11 relu_5_12 maxpool2d_3_13 adaptiveavgpool2d_1_14 flatten_1_15
dropout_1_16 linear_1_17 relu_6_18 dropout_2_19 linear_2_20 relu_7_21 linear_3_22 output_1_23""".split()


class AlexNet(nn.Module):
    """AlexNet's layers with few channels: the labels are those of the real one."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 2, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(2, 3, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(4, 2, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(72, 5), nn.ReLU(inplace=True),
            nn.Dropout(), nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Linear(5, 3),
        )  # fmt: skip

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


@pytest.fixture(scope="module")
def alexnet():
    return tl.log_forward_pass(AlexNet(), torch.rand(1, 3, 224, 224))


def test_alexnet_labels(alexnet):
    assert alexnet.layer_list == ALEXNET


def test_demo_network_labels():
    history = tl.log_forward_pass(DemoNetwork(), torch.rand(5, 5))
    expected = "input_1_0 add_1_1 relu_1_2 linear_1_3 relu_2_4 randn_1_5 add_2_6 pow_1_7 div_1_8 mul_1_9 output_1_10"
    assert history.layer_list == expected.split()
    assert history.buffer_layers == ["buffer_1"]
    assert history["buffer_1"].buffer_address == "example_buffer"
    assert history["randn_1"].initialized_inside_model
    assert history["randn_1"].function_is_random
    assert history.model_is_branching


def test_printed_history(alexnet):
    lines = str(alexnet).splitlines()
    assert lines[0] == "Log of AlexNet forward pass:"
    assert lines[1] == "\tModel structure: purely feedforward, without branching; 23 total modules."
    assert lines[2].startswith("\t24 tensors (")
    assert lines[2].endswith("saved.")
    assert lines[3].startswith("\t16 parameter operations (")
    assert lines[4] == "\tRandom seed: none set"
    assert lines[5].startswith("\tTime elapsed: ")
    assert lines[6:15] == [
        "\tModule Hierarchy:",
        "\t\tfeatures:",
        "\t\t    features.0, features.1, features.2, features.3, features.4, features.5, features.6, features.7,",
        "\t\t    features.8, features.9, features.10, features.11, features.12",
        "\t\tavgpool",
        "\t\tclassifier:",
        "\t\t    classifier.0, classifier.1, classifier.2, classifier.3, classifier.4, classifier.5, classifier.6",
        "\tLayers:",
        "\t\t0: input_1_0",
    ]
    assert lines[-1] == "\t\t23: output_1_23"


README_LAYER = """Output tensor|Params|Parent Layers|Child Layers|Function|Computed inside module|Time elapsed
Output of modules|Output of bottom-level module|Lookup keys""".replace("\n", "|").split("|")


def test_printed_layer(alexnet):
    lines = str(alexnet["conv2d_3_7"]).splitlines()
    assert lines[0] == "Layer conv2d_3_7, operation 8/24:"
    assert lines[1] == "\tOutput tensor: shape=(1, 4, 13, 13), dtype=torch.float32, size=2.6 KB"
    assert lines[2].startswith("\t\ttensor([[")
    assert lines[6].endswith("...")
    facts = {line.strip().partition(":")[0]: line.strip().partition(": ")[2] for line in [lines[1], *lines[7:]]}
    assert list(facts) == README_LAYER
    assert facts["Params"] == "Computed from params with shape (4, 3, 3, 3), (4,); 112 params total (448 B)"
    assert facts["Parent Layers"] == "maxpool2d_2_6"
    assert facts["Child Layers"] == "relu_3_8"
    assert facts["Function"] == "conv2d (gradfunc=ConvolutionBackward0)"
    assert facts["Computed inside module"] == "features.6"
    assert facts["Output of modules"] == "features.6"
    assert facts["Output of bottom-level module"] == "features.6"
    assert facts["Lookup keys"] == "-17, 7, conv2d_3_7, conv2d_3_7:1, features.6, features.6:1"


def test_what_has_no_gradient_function_names_none():
    class View(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.ones(1, 3))

        def forward(self, x):
            return self.token.expand(4, 3) + x

    with torch.no_grad():
        history = tl.get_model_metadata(View(), torch.ones(4, 3))
    assert {op.gradfunc_name for op in history} == {""}


class Frozen(nn.Module):
    """Two layers share a weight, which counts once; one layer is frozen, and the bias of another."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.third.requires_grad_(False)
        self.first.bias.requires_grad_(False)

    def forward(self, x):
        return self.third(self.second(self.first(x)))


def test_trainable_and_frozen_parameters():
    history = tl.log_forward_pass(Frozen(), torch.ones(1, 2))
    assert (history.total_params, history.total_params_trainable, history.total_params_fsize) == (14, 6, 56)
    assert str(history).splitlines()[3] == "\t5 parameter operations (14 params total, 8 of them frozen; 56 B)."
    printed = [str(op).split("; ")[1].partition(")")[0] for op in history if op.computed_with_params]
    assert printed == [
        "6 params total, 2 of them frozen (24 B", "6 params total (24 B", "6 params total, all frozen (24 B",
    ]  # fmt: skip
    assert [op.num_params_trainable for op in history if op.computed_with_params] == [4, 6, 0]


@pytest.mark.parametrize("key", ["conv2d_3_7", "conv2d_3", "conv2d_3_7:1", "features.6", "features.6:1", 7, -17])
def test_equivalent_keys(alexnet, key):
    assert alexnet[key].layer_label == "conv2d_3_7"


def test_a_module_of_many_operations_is_found_by_its_output(alexnet):
    assert alexnet["features"].layer_label == "maxpool2d_3_13"
    assert alexnet["maxpool2d_3"].modules_exited == ("features.12", "features")


def test_activation_values(alexnet):
    model, x = DemoNetwork(), torch.rand(5, 5)
    history = tl.log_forward_pass(model, x)
    assert torch.equal(history["add_1"].tensor_contents, x + 1)
    assert torch.equal(history["linear_1"].tensor_contents, model.fc(torch.relu(x + 1)))
    assert torch.equal(history["input_1"].tensor_contents, x)


def test_selected_layers():
    keys = ["conv2d_3_7", "features", -5, "linear"]
    history = tl.log_forward_pass(AlexNet(), torch.rand(1, 3, 224, 224), layers_to_save=keys)
    saved = ["conv2d_3_7", "maxpool2d_3_13", "linear_1_17", "dropout_2_19", "linear_2_20", "linear_3_22"]
    assert history.layer_labels == saved
    assert history[-1].layer_label == "linear_3_22"
    assert history["relu_1"].tensor_contents is None
    assert "not saved: layers_to_save=['relu_1_2'] of log_forward_pass saves it" in str(history["relu_1"])
    assert history["conv2d_3"].tensor_contents is not None
    assert history.num_tensors_saved == 6


def test_metadata_alone_saves_nothing():
    history = tl.get_model_metadata(AlexNet(), torch.rand(1, 3, 224, 224))
    assert history.layer_list == ALEXNET
    assert history.num_tensors_saved == 0
    assert all(layer.tensor_contents is None for layer in history if layer.func_applied)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("conv2d_33", "did you mean 'conv2d_3'"),
        ("featurs.6", "did you mean 'features.6'"),
        ("zzz", "expected a layer label"),
    ],
)
def test_wrong_keys_are_helped(alexnet, key, message):
    with pytest.raises(tl.LookupKeyError, match=message):
        alexnet[key]


def test_places_out_of_range(alexnet):
    with pytest.raises(IndexError, match="layer 24 is out of range: 24 layers are saved"):
        alexnet[24]


def test_a_module_of_several_layers_needs_its_pass():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(torch.cos(self.act(x)))

    history = tl.log_forward_pass(Twice(), torch.ones(1, 2))
    assert history["act:2"].layer_label == "relu_2_3"
    with pytest.raises(tl.LookupKeyError, match="matches several layers; name one of relu_1_1, relu_2_3"):
        history["act"]


def test_edges_know_argument_and_keyword():
    def forward(x, y):
        return torch.where(condition=x > 0, input=torch.stack([y, x])[0], other=x)

    history = tl.log_forward_pass(Function(forward), [torch.ones(2), torch.zeros(2)])
    assert [(e.parent, e.argument) for e in history["stack_1"].edges] == [("input_2_1", "0.0"), ("input_1_0", "0.1")]
    assert [e.argument for e in history["where_1"].edges] == ["condition", "input", "other"]
    assert history["where_1"].creation_kwargs["other"] == "input_1_0"


def test_one_call_with_three_results_is_three_layers():
    history = tl.log_forward_pass(nn.LSTM(2, 3), torch.ones(4, 1, 2))
    made = [history[f"lstm_{i}"] for i in (1, 2, 3)]
    assert [op.iterable_output_index for op in made] == [0, 1, 2]
    assert len({op.call_id for op in made}) == 1
    assert [op.tensor_shape for op in made] == [(4, 1, 3), (1, 1, 3), (1, 1, 3)]


def test_operations_without_part_in_the_result_are_no_layers():
    def forward(x):
        torch.arange(3) * 2
        unused = x + 1  # noqa: F841 - it descends from the input
        return x * 2

    history = tl.log_forward_pass(Function(forward), torch.ones(2))
    assert history.layer_list == ["input_1_0", "add_1_1", "mul_1_2", "output_1_3"]
    assert history["add_1"].terminated_inside_model
    assert history.num_operations == 4


def test_record_goes_to_json_and_back(alexnet):
    from pytest_torchlens.records import HistoryRecord
    from pytest_torchlens.records import from_json
    from pytest_torchlens.records import to_json

    record = alexnet.record()
    assert from_json(to_json(record), HistoryRecord) == record
    assert record.total_params == sum(p.numel() for p in AlexNet().parameters())


def test_a_list_that_is_the_one_argument():
    class Total(nn.Module):
        def forward(self, parts):
            return sum(parts)

    parts = [torch.ones(2), torch.ones(2)]
    assert tl.log_forward_pass(Total(), [parts]).layer_list[-1] == "output_1_4"
    with pytest.raises(tl.TraceError, match=r"Total.forward\(parts\) cannot take .*goes in as \[\[\.\.\.\]\]"):
        tl.log_forward_pass(Total(), parts)


TABLE = torch.arange(2.0)


class HoldsTensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = [torch.ones(2)]

    def forward(self, x):
        return x * self.plain[0] + TABLE + torch.from_numpy(np.ones(2, dtype="float32"))


def test_constants_say_where_they_are_from():
    history = tl.log_forward_pass(nn.Sequential(HoldsTensors()), torch.ones(2))
    origins = [history[label].constant_origin for label in history.constant_layers]
    assert origins[:2] == ["0.plain[0]", f"{__name__}.TABLE"]
    assert origins[2].startswith(f"made from an array, as by torch.from_numpy, first read in {__file__}:")
