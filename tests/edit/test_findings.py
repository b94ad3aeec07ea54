"""Findings of the literature, made again on small models that are trained here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.edit import Part
from pytest_torchlens.edit import grid
from pytest_torchlens.edit import zero_ablate

WIDTH, HEADS, TOKENS, HALF = 32, 4, 16, 8


class Heads(nn.Module):
    """Causal attention that reads positions in queries and keys alone."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        pairs = (self.q, x + positions), (self.k, x + positions), (self.v, x)
        q, k, v = (linear(given).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear, given in pairs)
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        self.mixed = (scores + torch.full(scores.shape[-2:], -1e9).triu(1)).softmax(-1) @ v
        return self.out(self.mixed.transpose(1, 2).flatten(2))

    def written(self) -> torch.Tensor:
        """Return what each head of the last pass adds to the stream."""
        return torch.einsum("bhtd,ohd->bhto", self.mixed, self.out.weight.unflatten(1, (HEADS, -1)))


class AttentionOnly(nn.Module):
    """Two layers of attention on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.unembed = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.positions = nn.Parameter(torch.randn(2 * HALF, WIDTH) * 0.3)
        self.layers = nn.ModuleList([Heads(), Heads()])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x, self.positions[: tokens.shape[1]])
        return self.unembed(x)


def repeated(length: int, number: int) -> torch.Tensor:
    """Return sequences of different tokens, each of them twice."""
    once = torch.rand(number, TOKENS).argsort(1)[:, :length]
    return torch.cat([once, once], 1)


def loss_in_second_half(output: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    half = tokens.shape[1] // 2
    return F.cross_entropy(output[:, half:-1].transpose(1, 2), tokens[:, half + 1 :], reduction="none").mean(1)


def trained_on_repeats(steps: int = 400) -> AttentionOnly:
    """Train a model; in the second half of the training heads pay for what they write, so that few are used."""
    model = AttentionOnly()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    for step in range(steps):
        tokens = repeated(int(torch.randint(4, HALF + 1, ())), 32)
        loss = loss_in_second_half(model(tokens), tokens).mean()
        price = 0.02 if step < steps / 2 else 0.2
        loss = loss + price * sum(layer.written().norm(dim=-1).mean((0, 2)).sum() for layer in model.layers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.mark.slow
def test_induction_heads():
    torch.manual_seed(0)
    model, tokens = trained_on_repeats(), repeated(HALF, 64)
    history = tl.log_forward_pass(model, tokens)

    now = torch.arange(HALF, 2 * HALF - 1)  # the head looks at what came after the token then, and writes it
    attention = history["softmax_2"].tensor_contents[:, :, now, now - HALF + 1].mean((0, 2))
    logits = model.layers[1].written() @ model.unembed.weight.T
    target = tokens[:, None, HALF + 1 :, None].expand(-1, HEADS, -1, 1)
    written = (logits - logits.mean(-1, keepdim=True))[:, :, HALF:-1].gather(-1, target).mean((0, 2, 3))
    score = attention * written
    found = [head for head in range(HEADS) if score[head] > 0.4 * score.max()]
    others = [head for head in range(HEADS) if head not in found]
    assert found
    assert others

    edits = [{Part("matmul_4", head=head): 0.0 for head in heads} for heads in (found, others)]
    sweep = history.sweep(edits, metric=lambda output: loss_in_second_half(output, tokens))
    with_all = sweep.baselines["clean"]["metric"].mean()
    without_found, without_others = sweep.values().tolist()
    assert with_all < 0.3
    assert without_found > with_all + 1  # by chance it is 2.8
    assert without_others < with_all + 0.3


def bars(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of a bar, which is level, upright or oblique, and which it is."""
    kinds = torch.arange(number) % 3
    shapes = torch.stack([torch.zeros(5, 5).index_fill(0, torch.tensor(2), 1), torch.zeros(5, 5), torch.eye(5)])
    shapes[1] = shapes[0].T
    images = torch.rand(number, 1, 12, 12) * 0.3
    for image, kind, (top, left) in zip(images, kinds, torch.randint(7, (number, 2)).tolist(), strict=True):
        image[0, top : top + 5, left : left + 5] += shapes[kind]
    return images, kinds


@pytest.mark.slow
def test_a_channel_selects_a_class():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(300):
        images, kinds = bars(48)
        loss = F.cross_entropy(model(images), kinds) + 0.03 * model[4].weight.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    images, kinds = bars(96)
    history = tl.log_forward_pass(model.eval(), images)
    pooled = history["adaptivemaxpool2d_1"].tensor_contents.flatten(1)
    means = torch.stack([pooled[kinds == kind].mean(0) for kind in range(3)])
    chosen = int((means[0] - means[1:].amax(0)).argmax())  # the channel that the level bars excite most

    accuracy = {
        name: lambda output, of=of: (output.argmax(1) == kinds)[of].double()
        for name, of in {"level": kinds == 0, "others": kinds > 0}.items()
    }
    edits = grid(["adaptivemaxpool2d_1"], zero_ablate(), channel=range(6))
    sweep = history.sweep(edits, metric=accuracy)
    level, others = sweep.values("level"), sweep.values("others")
    assert min(float(sweep.baselines["clean"][name].mean()) for name in accuracy) > 0.95
    assert level[chosen] < 0.2
    assert others[chosen] > 0.9
    assert all(level[channel] > 0.9 for channel in range(6) if channel != chosen)
