from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchlens.checks import attention
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(1, 6, 8, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Attention in two implementations, set as those of transformers are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.config = SimpleNamespace(_attn_implementation="sdpa")

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        is_eager = self.config._attn_implementation == "eager"
        return self.out(self.eager(q, k, v) if is_eager else self.fused(q, k, v))

    def eager(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        later = torch.ones(6, 6, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(later, float("-inf"))
        return scores.softmax(-1) @ v

    def fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # fused


class Unmasked(Attention):
    """Leaves the mask to the kernel in both."""

    def eager(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1) @ v


class AsksForTheKernel(nn.Module):
    """Scales by itself for one kernel, and forgets it for the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        has_flash = torch.backends.cuda.flash_sdp_enabled()
        q = x / 8**0.5 if has_flash else x  # scaled or not
        return F.scaled_dot_product_attention(q, x, x, scale=1.0)


def test_an_implementation_without_the_mask_is_found_at_the_kernel() -> None:
    result = check("attention", Unmasked(), X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "differs with attn_implementation 'eager'" in result.failure.message
    assert result.operation == "scaleddotproductattention_1_5"
    assert line_of(result).endswith("# fused")


def test_another_result_for_another_kernel_is_found() -> None:
    result = check("attention", AsksForTheKernel(), X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "differs with the math kernel" in result.failure.message
    assert line_of(result).endswith("# scaled or not")


def test_implementations_and_kernels_that_agree_pass_and_the_model_stays_as_it_was() -> None:
    model = Attention()
    result = check("attention", model, X)
    assert result.status is CheckStatus.PASSED
    assert "with the math kernel" in result.notes[0]
    assert "with attn_implementation 'eager'" in result.notes[0]
    assert model.config._attn_implementation == "sdpa"


def test_the_fast_path_of_torch_layers_is_compared() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    result = check("attention", nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval(), X)
    assert result.status is CheckStatus.PASSED
    assert "without the fast path" in result.notes[0]


def test_models_without_attention_cost_nothing() -> None:
    class Uncalled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError

    class SpatialAttention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sigmoid() * x

    Uncalled.__module__ = "torch.nn.modules.linear"
    assert "seems to have no attention" in check("attention", Uncalled(8, 8), X).reason
    assert "no implementation can be set" in check("attention", SpatialAttention(), X).reason


def test_the_kernel_of_the_plain_run_is_not_compared_with_itself() -> None:
    class WideAttention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = x[:, None]
            return F.scaled_dot_product_attention(q, q, torch.cat([q, q], -1))  # math alone takes it on a CPU

    result = check("attention", WideAttention(), X)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "the plain run takes the math kernel" in result.reason


def test_attention_in_a_function_of_another_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_helpers.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention\n\n"
        "def mix(x):\n    return scaled_dot_product_attention(x, x, x)\n"
    )
    (tmp_path / "of_models.py").write_text(
        "from torch import nn\n\nfrom of_helpers import mix\n\n\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        return mix(x[:, None])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("of_models").Net()
    result = check("attention", model, X)
    assert result.status is CheckStatus.PASSED
    assert "with the math kernel" in result.notes[0]


def test_an_implementation_that_is_not_set_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage of the check: the copy keeps what it had."""
    monkeypatch.setattr(Unmasked, "set_attn_implementation", lambda self, name: None)
    monkeypatch.setattr(attention, "_KERNELS", {})
    result = check("attention", Unmasked(), X)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "does not take it" in result.reason
