from __future__ import annotations

import pytest
import torch

from pytest_torchlens.run import RunOptions
from pytest_torchlens.run import run_case
from pytest_torchlens.zoo import ModelCase
from pytest_torchlens.zoo import TensorSpec
from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder


def shipped(name: str) -> Zoo:
    pytest.importorskip(name)
    return load_zoo(shipped_folder() / f"{name}.yaml")


def forward(case: ModelCase):
    model = case.build()
    args, kwargs = case.make_inputs(model)
    with torch.no_grad():
        return model(*args, **kwargs)


def test_torchvision_has_all_its_models():
    zoo = shipped("torchvision")
    import torchvision

    assert list(zoo.names) == sorted(torchvision.models.list_models())


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        "ssdlite320_mobilenet_v3_large",
        "raft_small",
        "lraspp_mobilenet_v3_large",
    ],
)
def test_models_of_every_kind_run(name: str):
    assert forward(shipped("torchvision").case(name)) is not None


def test_video_takes_clips():
    assert shipped("torchvision").case("r3d_18").settings.input == TensorSpec((1, 3, 16, 112, 112))


@pytest.mark.filterwarnings("ignore")  # of PyTorch, on quantized tensors
def test_quantized_models_compute_with_integers_and_hold():
    case = shipped("torchvision").case("quantized_shufflenet_v2_x0_5")
    report = run_case(case, RunOptions(validate=True)).report
    assert report.verdict
    assert report.verdict.operations_checked > 100
    assert report.history is not None
    assert "torch.quint8" in {operation.tensor_dtype for operation in report.history.operations}


def test_timm_takes_the_size_of_its_configuration():
    zoo = shipped("timm")
    case = zoo.case("test_vit")
    assert case.make_inputs(case.build()).args[0].shape == (1, 3, 160, 160)
    assert forward(case).shape == (1, 1000)
    assert len(zoo.names) > 1000


def test_timm_takes_another_size_where_it_is_built_so(tmp_path):
    pytest.importorskip("timm")
    path = tmp_path / "small.yaml"
    path.write_text("provider: timm\ndefaults: {kwargs: {img_size: 64, in_chans: 1}}")
    case = load_zoo(path).case("test_vit")
    assert case.make_inputs(case.build()).args[0].shape == (1, 1, 64, 64)
    assert forward(case).shape == (1, 1000)
