from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.checks import onnx
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import Approximate
from tests.checks.subjects import Branching
from tests.checks.subjects import Waves
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(2, 8, generator=torch.Generator().manual_seed(0))
with_onnx = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in onnx._PACKAGES), reason="pytest-torchlens[onnx]"
    ),
]


class Lacking(Waves):
    """Has an operation that ONNX has not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = torch.special.bessel_j0(y)  # not in ONNX
        return self.last(y)  # type: ignore[no-any-return]


class ForOnnx(Waves):
    """Does something else for torch.onnx.export."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = torch.tanh(y) if torch.onnx.is_in_onnx_export() else torch.sin(y)  # for ONNX
        return self.last(y)  # type: ignore[no-any-return]


class Normed(nn.Module):
    """A batch norm that is folded into the convolution, and an approximate function in both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(approximate="tanh"))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | tuple[torch.Tensor, ...]]:
        y = self.layers(x)
        return {"maps": y, "others": (y.mean((2, 3)), y.argmax(1))}


class TestWithOnnx:
    pytestmark = with_onnx

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            (Approximate(), "# the function"),
            (Branching(), "# the branch"),
            (Lacking(), "# not in ONNX"),
            (ForOnnx(), "# for ONNX"),
        ],
    )
    def test_what_onnx_computes_otherwise_or_not_at_all_is_found(self, model: nn.Module, words: str) -> None:
        result = check("onnx", model.eval(), X)
        assert result.status is CheckStatus.FAILED
        assert line_of(result).endswith(words)

    def test_a_node_that_is_another_one_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Sabotaged(onnx._Program):
            def __init__(self, exported: Any) -> None:
                super().__init__(exported)
                node = next(node for node in self._program.model.graph if node.op_type == "Sin")
                node.op_type = "Tanh"

        monkeypatch.setattr(onnx, "_Program", Sabotaged)
        result = check("onnx", Waves(), X)
        assert result.status is CheckStatus.FAILED
        assert result.operation == "sin_1_2"
        assert line_of(result).endswith("# waves")

    def test_a_program_that_cannot_be_taken_apart_either_fails_all_the_same(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def raises(*_: Any) -> None:
            raise RuntimeError("Pending unbacked symbols")

        monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", raises)
        result = check("onnx", Lacking().eval(), X)
        assert result.status is CheckStatus.FAILED
        assert "torch.onnx.export raised" in str(result.failure)

    def test_programs_that_compute_the_same_pass(self) -> None:
        result = check("onnx", Waves(), X, dynamic=True)
        assert (result.status, result.compared) == (CheckStatus.PASSED, 2)
        x = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
        result = check("onnx", Normed().eval(), x)
        assert (result.status, result.compared) == (CheckStatus.PASSED, 6)


def test_without_its_packages_it_is_not_applicable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else object())
    result = check("onnx", Waves(), X)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert result.reason == "onnxscript not installed: pip install 'pytest-torchlens[onnx]'"
