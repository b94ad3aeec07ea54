"""The models that are measured: six of torchvision, one of timm, and chains of tiny operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn


class Chain(nn.Module):
    """Two thousand operations on 16 x 16 floats: nearly all of the time is overhead."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run four operations five hundred times."""
        for _ in range(500):
            x = torch.relu(x * 0.5 + 1.0) - 1.0
        return x


class Draws(nn.Module):
    """Two thousand operations on 16 x 16 floats, every second of which draws random numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run two operations a thousand times."""
        for _ in range(1000):
            x = torch.dropout(x, 0.1, train=True) * 0.9
        return x


def _image(size: int = 224) -> torch.Tensor:
    return torch.randn(1, 3, size, size)


def _torchvision(name: str, size: int = 224) -> tuple[nn.Module, torch.Tensor]:
    import torchvision

    return torchvision.models.get_model(name, weights=None), _image(size)


def _timm(name: str) -> tuple[nn.Module, torch.Tensor]:
    import timm

    return timm.create_model(name, pretrained=False), _image()


def _chain(model: type[nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    return model(), torch.randn(16, 16)


WORKLOADS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "alexnet": partial(_torchvision, "alexnet"),
    "resnet18": partial(_torchvision, "resnet18"),
    "resnet50": partial(_torchvision, "resnet50"),
    "mobilenet_v3_large": partial(_torchvision, "mobilenet_v3_large"),
    "swin_v2_t": partial(_torchvision, "swin_v2_t"),
    "vit_b_16": partial(_torchvision, "vit_b_16"),
    "timm convnext_tiny": partial(_timm, "convnext_tiny"),
    "chain of 2,000": partial(_chain, Chain),
    "1,000 draws": partial(_chain, Draws),
}
LARGE: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "swin_v2_t at 512": partial(_torchvision, "swin_v2_t", 512),
    "vit_l_16": partial(_torchvision, "vit_l_16"),
}


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Return the workload's model, in eval mode, and its input; the same values each time."""
    torch.manual_seed(0)
    model, x = (WORKLOADS | LARGE)[name]()
    return model.eval(), x


def tiny() -> tuple[nn.Module, torch.Tensor]:
    """Return a model and an input that warm a mode up without touching a workload's memory."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)
