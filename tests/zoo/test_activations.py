"""The fill keeps the activations of real models alive: finite everywhere, and constant nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder

MODELS = [
    "torchvision:alexnet",
    "torchvision:convnext_tiny",
    "torchvision:densenet121",
    "torchvision:efficientnet_b0",
    "torchvision:resnet18",
    "torchvision:swin_v2_t",
    "torchvision:vit_b_16",
    "timm:test_convnext",
    "timm:test_resnet",
    "timm:test_vit",
]


def activations(model: nn.Module, args: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _module, _args, output: found.append(output.detach().clone()))
    with torch.no_grad():
        model(*args)
    return [output for output in found if output.numel() > 8]


@pytest.mark.parametrize("text", MODELS)
def test_no_layer_dies_or_overflows(text: str):
    zoo, _, name = text.partition(":")
    pytest.importorskip(zoo)
    case = load_zoo(Path(shipped_folder(), f"{zoo}.yaml")).case(name)
    model = case.build()
    outputs = activations(model, case.make_inputs(model).args)
    assert len(outputs) > 10
    for output in outputs:
        assert output.isfinite().all()
        assert 1e-3 < output.std() < 1e2
