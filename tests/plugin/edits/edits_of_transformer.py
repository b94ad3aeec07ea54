"""Thirty edits of the transformer."""

from __future__ import annotations

from tests.plugin.edits.edit import change
from tests.plugin.edits.edit import refactor
from tests.plugin.edits.edit import same
from tests.plugin.edits.edit import unseen

LOOP = "        for layer in self.layers:\n            x = layer(x)\n"
SCORES = "scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5"
QKV = "q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)"
MASK = "        mask = torch.ones(length, length, dtype=torch.bool).tril()\n"
MASKED = '        scores = scores.masked_fill(~mask, float("-inf"))\n'
BY_HAND = f"        {SCORES}\n{MASK}{MASKED}        mixed = self.drop(scores.softmax(-1)) @ v\n"
FUSED = """
        dropped = self.drop.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
"""
FUSED_WITHOUT_DROPOUT = "        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
PARTS = """
        parts = zip(self.qkv.weight.chunk(3), self.qkv.bias.chunk(3))
        q, k, v = [F.linear(x, w, b).view(batch, length, self.heads, -1).transpose(1, 2) for w, b in parts]
"""
WIDEN = "        self.widen, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)\n"
MLP = f"""
class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
{WIDEN}
    def forward(self, x):
        return self.narrow(F.gelu(self.widen(x)))


"""
FEED = "self.narrow(F.gelu(self.widen(self.norm2(x))))"
POST_NORM = (
    ("x = x + self.attention(self.norm1(x))", "x = self.norm1(x + self.attention(x))"),
    (f"return x + {FEED}", "return self.norm2(x + self.narrow(F.gelu(self.widen(x))))"),
)

EDITS = (
    # -- the same, by other calls or under other names
    same("loop-unrolled", (LOOP, "        x = self.layers[1](self.layers[0](x))\n")),
    same(
        "layers-in-a-sequence",
        (LOOP, "        x = self.layers(x)\n"),
        ("nn.ModuleList([Layer(16), Layer(16)])", "nn.Sequential(Layer(16), Layer(16))"),
    ),
    same(
        "checkpointed",
        ("x = layer(x)", "x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)"),
        ("import torch\n", "import torch\nimport torch.utils.checkpoint\n"),
    ),
    refactor("layers-renamed", "blocks.0.norm1/layernorm", ("self.layers", "self.blocks")),
    refactor("parameter-renamed", "/add", ("self.position", "self.places")),
    refactor("attention-fused", "layers.0.attention/scaleddotproductattention", (BY_HAND, FUSED)),
    refactor("linear-unfused", "layers.0.attention/chunk", (QKV, PARTS.strip())),
    refactor("linear-by-hand", "/mt", ("self.next(x)", "x @ self.next.weight.mT + self.next.bias")),
    refactor(
        "norm-as-function", "/layernorm", ("self.norm(x)", "F.layer_norm(x, (16,), self.norm.weight, self.norm.bias)")
    ),
    refactor(
        "gelu-as-module",
        "layers.0.act/gelu",
        ("F.gelu(", "self.act("),
        (WIDEN, WIDEN + "        self.act = nn.GELU()\n"),
    ),
    refactor(
        "mlp-extracted",
        "layers.0.mlp.widen/linear",
        (WIDEN, "        self.mlp = Mlp(width)\n"),
        (FEED, "self.mlp(self.norm2(x))"),
        ("class Layer", MLP.strip() + "\n\n\nclass Layer"),
    ),
    refactor(
        "einsum", "layers.0.attention/einsum", ("q @ k.transpose(-2, -1)", 'torch.einsum("bhqd,bhkd->bhqk", q, k)')
    ),
    refactor("reshaped", "layers.0.attention/reshape", (".view(", ".reshape(")),
    refactor(
        "residual-in-place",
        "layers.0/add",
        ("x = x + self.attention(self.norm1(x))", "x += self.attention(self.norm1(x))"),
    ),
    refactor(
        "mask-as-buffer",
        "layers.0.attention/ones",
        (MASK, ""),
        ("~mask", "~self.mask"),
        (
            "        self.heads = heads\n",
            '        self.heads = heads\n        self.register_buffer("mask", torch.ones(7, 7).bool().tril(), False)\n',
        ),
    ),
    unseen(
        "queries-scaled",
        "layers.0.attention/div",
        (SCORES, "scores = (q / (width // self.heads) ** 0.5) @ k.transpose(-2, -1)"),
    ),
    # -- something else
    change("scale", "layers.0.attention/div", ("// self.heads) ** 0.5", "// self.heads)")),
    change("mask-dropped", "layers.0.attention/ones", (MASK + MASKED, "")),
    change("norm-behind", "layers.0.norm1/layernorm", *POST_NORM),
    change("queries-and-keys-swapped", "layers.0.attention/transpose", ("q, k, v = self", "k, q, v = self")),
    change("fewer-heads", "layers.0.attention/view", ("Attention(width, 4)", "Attention(width, 2)")),
    change("gelu-approximated", "layers.0/gelu", ("F.gelu(", "F.gelu(approximate='tanh', input=")),
    change("formula-in-a-script", "/capped", ("5 * torch.tanh(x / 5)", "4 * torch.tanh(x / 4)"), word="regression"),
    unseen(
        "dropout-dropped", "layers.0.attention.drop/dropout", ("self.drop(scores.softmax(-1))", "scores.softmax(-1)")
    ),
    unseen(
        "attention-fused-without-dropout",
        "layers.0.attention/scaleddotproductattention",
        (BY_HAND, FUSED_WITHOUT_DROPOUT),
    ),
    unseen("position-detached", "/detach", ("self.position\n        for", "self.position.detach()\n        for")),
    same(
        "script-rounded-otherwise",
        ("5 * torch.tanh(x / 5)", "5 * torch.tanh(x * 0.2)"),
        word="local-change",
        operation="/capped",
    ),
    change(
        "tied",
        "next/linear",
        ("        self.topic =", "        self.next.weight = self.embed.weight\n        self.topic ="),
    ),
    change("half-precision", "layers.0.attention/half", ("scores.softmax(-1)", "scores.half().softmax(-1).float()")),
    change(
        "other-init",
        "embed/embedding",
        ("        self.position =", "        nn.init.normal_(self.embed.weight, std=0.02)\n        self.position ="),
        word="inputs-differ",
    ),
)
