"""What holds on the CPU holds on a GPU; `tox -e cuda` runs the GPU's half."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.run import check_device
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate import validate
from tests.models import DemoNetwork
from tests.models import Function
from tests.models import SmallConvNet
from tests.models import Views
from tests.models import failures


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    try:
        return check_device(request.param)
    except ValueError as error:
        pytest.skip(str(error))


MODELS = {
    "demo": (lambda: Function(lambda x: (x + torch.randn_like(x)).relu()), (5, 5)),
    "conv, training": (SmallConvNet, (4, 3, 6, 6)),
    "views": (Views, (2, 3)),
    "lstm": (lambda: nn.LSTM(3, 4, 2, dropout=0.5), (5, 2, 3)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1), (5, 2, 8)),
    "attention": (lambda: Function(lambda x: nn.functional.scaled_dot_product_attention(x, x, x)), (2, 4, 16, 32)),
    "masked": (lambda: Function(lambda x: x.masked_fill(x < 0, -1e9).softmax(-1)), (4, 4)),
    "written input": (lambda: Function(lambda x: x.mul_(2) + 1), (4,)),
    "there and back": (lambda: Function(lambda x: x.cpu().add(1).to(x.device) * x), (4,)),
    "made on the device": (lambda: Function(lambda x: x + torch.arange(4, device=x.device)), (4,)),
}


@pytest.mark.parametrize(("build", "shape"), MODELS.values(), ids=MODELS)
def test_models_are_proven(device, build, shape):
    verdict = validate(build().to(device), (torch.randn(*shape, device=device),), seed=1).verdict
    assert failures(verdict) == []
    assert verdict.status in {Status.PASSED, Status.PASSED_WITH_TOLERANCE}


def test_training_with_gradients_is_proven(device):
    model = SmallConvNet().to(device).train()
    x = torch.randn(4, 3, 6, 6, device=device, requires_grad=True)
    assert failures(validate(model, (x,), seed=1).verdict) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_part_of_the_record(device, dtype):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)
    with torch.autocast(device.type, dtype):
        verdict = validate(model, (torch.randn(3, 8, device=device),)).verdict
    assert failures(verdict) == []
    assert verdict.settings["autocast"] == f"{device.type} {str(dtype).removeprefix('torch.')}"


def test_lower_matmul_precision_is_part_of_the_record(device):
    kept = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        verdict = validate(nn.Linear(64, 64).to(device), (torch.randn(8, 64, device=device),)).verdict
    finally:
        torch.set_float32_matmul_precision(kept)
    assert failures(verdict) == []
    assert verdict.settings["float32 matmul precision"] == "high"


def test_convolutions_chosen_by_trial_are_within_tolerance(device):
    with torch.backends.cudnn.flags(benchmark=True):
        verdict = validate(nn.Conv2d(8, 16, 3).to(device), (torch.randn(2, 8, 32, 32, device=device),)).verdict
    assert failures(verdict) == []


def test_sums_in_any_order_are_within_tolerance(device):
    index = torch.arange(100_000, device=device) % 7

    def add_up(x):
        return torch.zeros(7, device=x.device).index_add(0, index, x) + torch.zeros(7, device=x.device).scatter_add(
            0, index, x
        )

    verdict = validate(Function(add_up), (torch.rand(100_000, device=device),)).verdict
    assert failures(verdict) == []
    assert verdict.status in {Status.PASSED, Status.PASSED_WITH_TOLERANCE}


def test_generators_go_on_as_if_nothing_had_been(device):
    x = torch.rand(9, device=device)
    torch.manual_seed(3)
    expected = torch.rand(3, device=device)
    torch.manual_seed(3)
    validate(Function(nn.functional.dropout), (x,), seed=1)
    assert torch.equal(torch.rand(3, device=device), expected)


def test_a_constant_of_the_device_that_changes_is_found(device):
    scale = torch.full((3,), 2.0, device=device)
    recording = record(Function(lambda x: x * scale), (torch.ones(3, device=device),), thorough=True)
    scale[1] += 1e-6
    replay, *_ = check_recording(recording, ModelHistory(recording))
    assert replay.failures[0].operation == "mul_1_1"


def test_the_demo_network_fails_only_where_the_model_itself_does(device):
    model, x = DemoNetwork().to(device), torch.randn(5, 5, device=device)
    if device.type == "cpu":
        assert validate(model, (x,), seed=1).verdict.status is Status.PASSED
    else:  # its forward adds noise that it makes on the CPU
        with pytest.raises(RuntimeError, match="same device"):
            validate(model, (x,), seed=1)


@pytest.mark.slow
def test_a_zoo_is_audited_there(pytester, device):
    ran = pytester.runpytest_subprocess(
        "--lens-zoo=torchvision:resnet18,vit_b_16", "--lens-validate", f"--lens-device={device}", "-p", "no:randomly"
    )
    ran.assert_outcomes(passed=2)
