"""The code of the READMEs and of the poster, with this package's name, and what it prints."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from tests.history.test_model_history import ALEXNET
from tests.history.test_model_history import AlexNet
from tests.models import DemoNetwork
from tests.models import RecurrentNetwork


class SimpleRecurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(in_features=5, out_features=5)

    def forward(self, x):
        for _ in range(4):
            x = self.fc(x)
            x = x + 1
            x = x * 2
        return x


class Submodule2(nn.Module):
    def forward(self, x):
        x = x + 2
        w = torch.cos(x)
        y = torch.sin(x)
        z = torch.tan(x)
        return w + y + z


class Submodule1(nn.Module):
    def __init__(self):
        super().__init__()
        self.submodule2 = Submodule2()

    def forward(self, x):
        x = x + 1
        x = self.submodule2(x)
        return x * 4


class NetworkOrganizationDemo(nn.Module):
    def __init__(self):
        super().__init__()
        self.submodule1 = Submodule1()

    def forward(self, x):
        x = x * 2 if torch.sum(x) > 0 else x + 1
        w = 1 / x
        y = torch.log(x)
        z = x**2
        x = w + y + z
        x = self.submodule1(x)
        x = x + 1
        return x * 2


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    """Run in a temporary folder, which drawings are written to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pytest_torchlens.draw.drawing.render", lambda dot, _format, **_: dot.encode())
    return tmp_path


def test_second_pass_of_the_first_linear_layer(in_a_folder):
    simple_recurrent, x = SimpleRecurrent(), torch.rand(6, 5)
    model_history = tl.log_forward_pass(simple_recurrent, x, layers_to_save="all", vis_opt="rolled")
    first = (simple_recurrent.fc(x) + 1) * 2
    assert torch.equal(model_history["linear_1_1:2"].tensor_contents, simple_recurrent.fc(first))
    drawn = (in_a_folder / "model_graph.svg").read_text(encoding="utf-8")
    assert "linear_1_1" in drawn
    assert "linear_1_1:2" not in drawn


def test_the_recurrent_network_of_the_poster(in_a_folder):
    model_history = tl.get_model_activations(RecurrentNetwork(), torch.rand(5, 5), vis_opt="unrolled")
    lines = str(model_history).splitlines()
    assert lines[1].startswith("\tModel structure: recurrent (at most 3 loops), without branching; 1 total module")
    layers = [line.strip() for line in lines[lines.index("\tLayers:") + 1 :]]
    assert layers[0] == "0: input_1_0"
    assert layers[7:] == [
        "7: linear_1_1:3 (3/3 passes)", "8: add_1_2:3 (3/3 passes)", "9: mul_1_3:3 (3/3 passes)", "10: output_1_4",
    ]  # fmt: skip
    printed = str(model_history["linear_1_1:2"])
    assert printed.startswith("Layer linear_1_1 (pass 2/3), operation 5/11:")
    for line in (
        "Params: Computed from params with shape (5, 5), (5,); 30 params total (120 B)",
        "Parent Layers: mul_1_3:1",
        "Child Layers: add_1_2:2",
        "Function: linear (gradfunc=AddmmBackward0)",
        "Computed inside module: fc",
        "Lookup keys: -7, 4, fc:2, linear_1_1:2",
    ):
        assert f"\t{line}" in printed
    assert "linear_1_1:2" in (in_a_folder / "model_graph.svg").read_text(encoding="utf-8")


def test_network_organization(in_a_folder):
    model_history = tl.get_model_activations(NetworkOrganizationDemo(), torch.rand(5, 5), vis_opt="unrolled")
    lines = str(model_history).splitlines()
    assert lines[1] == "\tModel structure: purely feedforward, with branching; 2 total modules."
    assert lines[3] == "\t0 parameter operations (0 params total; 0 B)."
    assert lines[6:9] == ["\tModule Hierarchy:", "\t\tsubmodule1:", "\t\t    submodule1.submodule2"]
    layer = model_history["submodule1.submodule2"]
    assert layer.layer_type == "add"
    for line in ("Params: no params used", "Output of modules: submodule1.submodule2"):
        assert f"\t{line}" in str(layer)
    assert layer.lookup_keys[2:] == (
        layer.label,
        f"{layer.label}:1",
        "submodule1.submodule2",
        "submodule1.submodule2:1",
    )


def test_the_demo_network(in_a_folder):
    model_history = tl.get_model_activations(DemoNetwork(), torch.rand(5, 5), vis_opt="unrolled")
    lines = str(model_history).splitlines()
    assert lines[:2] == [
        "Log of DemoNetwork forward pass:",
        "\tModel structure: purely feedforward, with branching; 2 total modules.",
    ]
    assert lines[2].startswith("\t12 tensors (")
    assert lines[3] == "\t2 parameter operations (30 params total; 120 B)."
    assert lines[-11:-6] == [
        "\t\t0: input_1_0",
        "\t\t1: add_1_1",
        "\t\t2: relu_1_2",
        "\t\t3: linear_1_3",
        "\t\t4: relu_2_4",
    ]
    assert str(model_history["linear_1_3"]).endswith("Lookup keys: -8, 3, fc, fc:1, linear_1_3, linear_1_3:1")


def test_layers_to_save_of_the_readme(in_a_folder):
    model_history = tl.log_forward_pass(
        AlexNet(), torch.rand(1, 3, 224, 224), vis_opt="unrolled",
        layers_to_save=["conv2d_3_7", "features", -5, "linear"],
    )  # fmt: skip
    expected = ["conv2d_3_7", "maxpool2d_3_13", "linear_1_17", "dropout_2_19", "linear_2_20", "linear_3_22"]
    assert model_history.layer_labels == expected
    assert [op.label for op in model_history.operations if op.tensor_contents is not None] == expected


@pytest.mark.zoo
def test_the_readme_on_the_real_alexnet(in_a_folder):
    torchvision = pytest.importorskip("torchvision")
    alexnet, x = torchvision.models.alexnet(), torch.rand(1, 3, 224, 224)
    model_history = tl.log_forward_pass(alexnet, x, layers_to_save="all", vis_opt="unrolled")
    lines = str(model_history).splitlines()
    assert lines[:4] == [
        "Log of AlexNet forward pass:",
        "\tModel structure: purely feedforward, without branching; 23 total modules.",
        "\t24 tensors (4.8 MB) computed in forward pass; 24 tensors (4.8 MB) saved.",
        "\t16 parameter operations (61100840 params total; 233.1 MB).",
    ]
    assert model_history.layer_list == ALEXNET
    printed = str(model_history["conv2d_3_7"])
    assert "shape=(1, 384, 13, 13), dtype=torch.float32, size=253.5 KB" in printed
    assert "663936 params total (2.5 MB)" in printed
    assert printed.endswith("Lookup keys: -17, 7, conv2d_3_7, conv2d_3_7:1, features.6, features.6:1")
    frame = model_history["conv2d_3"].func_call_stack[0]
    assert frame["call_fname"].endswith("torchvision/models/alexnet.py")
    assert "        x = self.features(x)\n" in frame["code_context"]
    assert len(frame["code_context"]) == 19
    wanted = ["conv2d_3_7", "features", -5, "linear"]
    saved = tl.log_forward_pass(alexnet, x, vis_opt="unrolled", layers_to_save=wanted).layer_labels
    assert saved == ["conv2d_3_7", "maxpool2d_3_13", "linear_1_17", "dropout_2_19", "linear_2_20", "linear_3_22"]


def test_call_stack_of_the_readme():
    model_history = tl.log_forward_pass(AlexNet(), torch.rand(1, 3, 224, 224))
    frame = model_history["conv2d_3"].func_call_stack[0]
    assert list(frame) == ["call_fname", "call_linenum", "function", "code_context"]
    assert frame["function"] == "forward"
    assert "        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))\n" in frame["code_context"]


def test_metadata_is_logging_with_nothing_saved():
    one = tl.get_model_metadata(DemoNetwork(), torch.rand(5, 5))
    other = tl.log_forward_pass(DemoNetwork(), torch.rand(5, 5), layers_to_save=None)
    assert one.layer_list == other.layer_list
    assert one.num_tensors_saved == other.num_tensors_saved == 0


def test_validation_is_true_when_passed():
    assert tl.validate_model_activations(DemoNetwork(), torch.rand(5, 5))
    assert tl.validate_saved_activations is tl.validate_model_activations


def test_show_model_graph(in_a_folder):
    tl.show_model_graph(AlexNet(), torch.rand(1, 3, 224, 224), vis_nesting_depth=1, vis_outpath="alexnet.dot")
    drawn = (in_a_folder / "alexnet.dot").read_text(encoding="utf-8")
    assert "features" in drawn
    assert "conv2d_3_7" not in drawn


def test_without_graphviz_the_history_is_had_and_a_warning_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", "/nowhere/dot")
    with pytest.warns(UserWarning, match="no drawing: /nowhere/dot does not start"):
        history = tl.log_forward_pass(
            nn.Linear(2, 2), torch.ones(1, 2), vis_opt="unrolled", vis_outpath=tmp_path / "graph.svg"
        )
    assert history["linear_1"].tensor_contents is not None


def test_an_unknown_drawing_is_refused_before_the_model_runs():
    with pytest.raises(ValueError, match="vis_opt: expected 'none', 'unrolled', 'rolled', got 'rolled-up'"):
        tl.log_forward_pass(nn.Linear(2, 2), torch.ones(1, 3), vis_opt="rolled-up")


def test_signature():
    names = list(inspect.signature(tl.log_forward_pass).parameters)
    assert names[:6] == ["model", "input_args", "input_kwargs", "layers_to_save", "random_seed", "vis_opt"]
