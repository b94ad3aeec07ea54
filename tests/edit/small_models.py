"""A small transformer and a small CNN, whose edits can also be made by hooks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 11


class Attention(nn.Module):
    """Causal attention with four heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(heads.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a perceptron on a residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    """Two blocks."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def cnn() -> nn.Sequential:
    """Return two convolutions and a classifier."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )
