"""Edits of edges and of parts of tensors equal forwards that were rewritten by hand to do the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens import Part


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        return x + self.inner(self.norm(x))

    def rewritten(self, x):
        return x * 0 + self.inner(self.norm(x))  # the skip connection alone is cut


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 6)

    def forward(self, x):
        y = self.up(x)
        return y * torch.sigmoid(y)

    def rewritten(self, x):
        y = self.up(x)
        return y * torch.sigmoid(y - 1)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 3)

    def forward(self, x):
        return self.second(F.relu(self.first(x))).mean((2, 3))

    def rewritten(self, x):
        y = F.relu(self.first(x))
        return self.second(torch.cat([y[:, :2], y[:, 2:3] * 3, y[:, 3:]], 1)).mean((2, 3))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def attended(self, x):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        return self.out(self.attended(x).transpose(1, 2).flatten(2))

    def rewritten(self, x):
        heads = self.attended(x)
        return self.out(torch.stack([heads[:, 0], heads[:, 1] * 0], 1).transpose(1, 2).flatten(2))


class Merged(Attention):
    """The same with another key: heads that stand side by side in the features."""


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.out = nn.Embedding(9, 6), nn.Embedding(5, 6), nn.Linear(6, 9)

    def forward(self, tokens):
        return self.out(self.words(tokens) + self.places(torch.arange(5)))

    def rewritten(self, tokens):
        y = self.words(tokens) + self.places(torch.arange(5))
        return self.out(torch.cat([y[:, :1], y[:, 3:4], y[:, 2:]], 1))  # the second position gets the fourth's


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 6)

    def steps(self, x, change):
        hidden = torch.zeros(len(x), 6)
        for number in range(3):
            hidden = change(number, self.cell(x, hidden))
        return hidden

    def forward(self, x):
        return self.steps(x, lambda number, hidden: hidden)

    def rewritten(self, x):
        return self.steps(x, lambda number, hidden: hidden.flip(1) if number == 1 else hidden)


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        left = self.left(x)
        return torch.cat([left, self.right(x), left], 1)

    def rewritten(self, x):
        left = self.left(x)
        return torch.cat([left + 1, self.right(x), left + 1], 1)


class Overwriting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        y = self.inner(x)
        z = y[:, :3]
        y.relu_()  # z sees it
        return y.sum(1) + z.sum(1)

    def rewritten(self, x):
        y = self.inner(x)
        z = y[:, :3]
        y.relu_()
        y[0] = 2
        return y.sum(1) + z.sum(1)


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(6, 6))
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return self.inner(x) @ self.table + x @ self.table

    def rewritten(self, x):
        return self.inner(x) @ self.table + x @ (self.table * 0.5)


def flipped(hidden):
    return hidden.flip(1)


ROWS = torch.linspace(-1, 1, 18).reshape(3, 6)
SEQUENCE = torch.linspace(-1, 1, 80).reshape(2, 5, 8)
CASES = {
    Residual: ({("input_1", "add_1"): 0.0}, ROWS),
    Gated: ({("up", "sigmoid_1"): lambda y: y - 1}, ROWS),
    Convolutions: ({Part("relu_1", channel=2): lambda y: y * 3}, torch.rand(2, 2, 7, 7)),
    Attention: ({Part("scaleddotproductattention_1", head=1): 0.0}, SEQUENCE),
    Merged: ({Part("flatten_1", head=(1, 2)): 0.0}, SEQUENCE),
    Positions: ({"add_1": lambda y: y[:, [0, 3, 2, 3, 4]]}, torch.tensor([[1, 2, 3, 4, 5], [5, 6, 7, 8, 0]])),
    Cell: ({"cell:2": flipped}, ROWS),
    Joined: ({("left", "cat_1"): lambda y: y + 1}, ROWS),
    Overwriting: ({Part("relu_1")[0]: 2.0}, ROWS),
    Buffered: ({("table", "matmul_2"): lambda table: table * 0.5}, ROWS),
}


@pytest.mark.parametrize("live", [False, True], ids=["replay", "live"])
@pytest.mark.parametrize(("kind", "edits", "x"), [(kind, *case) for kind, case in CASES.items()], ids=[kind.__name__ for kind in CASES])
def test_an_edit_is_the_rewritten_forward(kind, edits, x, live):
    torch.manual_seed(0)
    model = kind()
    history = tl.log_forward_pass(model, x)
    edited = history.edit(edits, live=live)["output_1"].tensor_contents
    assert torch.equal(edited, model.rewritten(x))
    assert not torch.equal(edited, history["output_1"].tensor_contents)
