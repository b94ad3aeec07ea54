"""The models that are measured: small and large ones, and 20 of timm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn


class Chain(nn.Module):
    """Two thousand operations on 16 x 16 floats: nearly all of the time is overhead."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run four operations five hundred times."""
        for _ in range(500):
            x = torch.relu(x * 0.5 + 1.0) - 1.0
        return x


def _image(size: int = 224) -> torch.Tensor:
    return torch.randn(1, 3, size, size)


def _torchvision(name: str, size: int = 224) -> tuple[nn.Module, torch.Tensor]:
    import torchvision

    return torchvision.models.get_model(name, weights=None), _image(size)


def _timm(name: str) -> tuple[nn.Module, torch.Tensor]:
    import timm

    model: Any = timm.create_model(name, pretrained=False)
    return model, torch.randn(1, *model.default_cfg["input_size"])


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    from transformers import BertConfig
    from transformers import BertModel

    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=5, num_attention_heads=4, intermediate_size=64
    )
    return BertModel(config), torch.randint(100, (1, 16))


def _chain() -> tuple[nn.Module, torch.Tensor]:
    return Chain(), torch.randn(16, 16)


Workload = Callable[[], tuple[nn.Module, torch.Tensor]]

WORKLOADS: dict[str, Workload] = {
    "resnet50": partial(_torchvision, "resnet50"),
    "vit_b_16": partial(_torchvision, "vit_b_16"),
    "swin_v2_t": partial(_torchvision, "swin_v2_t"),
    "mobilenet_v3_large": partial(_torchvision, "mobilenet_v3_large"),
    "BERT, 5 layers of width 32": _transformer,
    "chain of 2,000": _chain,
}
LARGE: dict[str, Workload] = {
    "swin_v2_t at 512": partial(_torchvision, "swin_v2_t", 512),
    "vit_l_16": partial(_torchvision, "vit_l_16"),
}
FAMILIES: dict[str, Workload] = {
    name: partial(_timm, name)
    for name in (
        *("xception41p", "legacy_xception", "resnest14d", "vit_srelpos_small_patch16_224", "hiera_tiny_224"),
        *("resnetv2_18", "resnet10t", "dpn48b", "visformer_tiny", "deit_tiny_patch16_224", "hrnet_w18_small"),
        *("swiftformer_xs", "convnext_zepto_rms", "fasternet_t0", "lcnetv2_small", "inception_next_atto"),
        *("cspnext_tiny", "starnet_s050", "mobilenetv2_035", "mobilenetv3_small_050"),
    )
}
"""The smallest models of 20 of timm's 98 families.

The families of ``docs/zoo/timm.csv`` were sorted by the cost of a validation; of each five in a row this is the one
that takes the least time.
"""


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Return the workload's model, in eval mode, and its input; the same values each time."""
    torch.manual_seed(0)
    model, x = (WORKLOADS | LARGE | FAMILIES)[name]()
    return model.eval(), x


def tiny() -> tuple[nn.Module, torch.Tensor]:
    """Return a model and an input that warm a mode up without touching a workload's memory."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)
