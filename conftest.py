"""What tests share: a machine that is nobody's CI, one seed, and a zoo of models of a few numbers each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# the seed that PyTorch begins with differs from process to process: inputs that are drawn on import would, too
torch.manual_seed(0)

MODELS = '''
import os
import torch
from torch import nn


class Raises(nn.Module):
    def forward(self, x):
        return self.inner(x)

    def inner(self, x):
        raise RuntimeError("boom in forward")


class Broken(nn.Module):
    def __init__(self):
        raise ValueError("boom in construction")




class Drifts(nn.Module):
    """Notices that it is recorded and computes something else."""

    def forward(self, x):
        return x * (2 if torch.overrides._is_torch_function_mode_enabled() else 3)


class Dies(nn.Module):
    def forward(self, x):
        os._exit(13)


class Interrupts(nn.Module):
    def forward(self, x):
        raise KeyboardInterrupt


def zoo():
    return {
        "mlp": lambda width=3: nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)),
        "mlp_tanh": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        "linear": lambda: nn.Linear(4, 2),
        "raises": Raises,
        "broken": Broken,
        "drifts": Drifts,
        "dies": Dies,
        "interrupts": Interrupts,
    }
'''

ZOO = """
provider: "python:models.py:zoo"
defaults:
  input: {shape: [2, 4]}
"""


@pytest.fixture(autouse=True, scope="session")
def _no_ci() -> Iterator[None]:
    """Let runs behave as on a developer's machine wherever the suite runs; tests of CI set what they need."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def tiny_zoo(pytester: pytest.Pytester) -> Path:
    """Give the inner pytest's project a zoo called ``tiny``; return its file."""
    folder = pytester.mkdir("model_zoo_configs")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    path = folder / "tiny.yaml"
    path.write_text(ZOO, encoding="utf-8")
    return path
