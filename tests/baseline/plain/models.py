"""Models of plain PyTorch, each of operations whose kernels change now and then."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = ("float32", "bfloat16", "float16")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.heads(x, x, x, need_weights=False)
        return F.scaled_dot_product_attention(mixed, x, x)


class Interpolation(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        smooth = [F.interpolate(x, size=(23, 29), mode=mode, align_corners=False) for mode in ("bilinear", "bicubic")]
        return [F.interpolate(x, scale_factor=2), *smooth]


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.GroupNorm(4, 8), nn.BatchNorm2d(8)])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [F.instance_norm(x), *(norm(x) for norm in self.norms)]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))


def _cnn() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    body = [nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*stem, *body, nn.Linear(32, 10))


def _lstm() -> nn.Module:
    return nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True)


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)


def _embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 32), nn.Linear(32, 8))


def _deconv() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose2d(8, 4, 3, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 2, 4, padding=1))


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "cnn": _cnn,
    "deconv": _deconv,
    "embedding": _embedding,
    "encoder": _encoder,
    "interpolation": Interpolation,
    "lstm": _lstm,
    "mlp": _mlp,
    "norms": Norms,
}


def zoo() -> dict[str, Callable[[], nn.Module]]:
    """Return each model in each dtype, which the zoo file sets by the end of its name."""
    return {f"{name}_{dtype}": make for (name, make), dtype in product(MAKERS.items(), DTYPES)}
