from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.checks import device
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.run.preserved_state import preserved_global_state
from tests.checks.subjects import TwoLayers
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(2, 8, generator=torch.Generator().manual_seed(0))


class Moving(TwoLayers):
    """Knows that it was moved; where the second device is the CPU, too, this stands for kernels of its own."""

    moved = False

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.moved = True
        return super()._apply(fn, recurse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).sin())  # type: ignore[no-any-return]


class Coarse(Moving):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        dtype = torch.bfloat16 if self.moved else torch.float32
        y = y.to(dtype)  # rounds there
        return self.last(y.float())  # type: ignore[no-any-return]


class Wrong(Moving):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = nn.functional.gelu(y, approximate="tanh" if self.moved else "none")  # another function there
        return self.last(y)  # type: ignore[no-any-return]


class Reordered(Moving):
    """Sums in another order there, as kernels do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last((y.flip(0) if self.moved else y).cumsum(1)).sum(0)  # type: ignore[no-any-return]


class OnTheCpu(TwoLayers):
    """Makes a constant where no device was named."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y + torch.linspace(0, 1, 8)  # on the CPU
        return self.last(y)  # type: ignore[no-any-return]


class OnItsDevice(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) + torch.linspace(0, 1, 8, device=x.device))  # type: ignore[no-any-return]


@pytest.fixture
def second_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available", lambda: ["cpu"])


@pytest.mark.usefixtures("second_cpu")
@pytest.mark.parametrize(("model", "words"), [(Coarse(), "# rounds there"), (Wrong(), "# another function there")])
def test_what_computes_otherwise_on_the_second_device_is_found(model: Moving, words: str) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    result = check("device", model, X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith(words)
    assert result.failure is not None
    assert " on cpu: " in result.failure.message
    assert not model.moved
    assert before == (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)


@pytest.mark.usefixtures("second_cpu")
@pytest.mark.parametrize("model", [Moving(), Reordered()])
def test_another_order_of_summation_passes(model: nn.Module) -> None:
    result = check("device", model, X)
    assert (result.status, result.compared) == (CheckStatus.PASSED, 1)
    assert result.notes == ("on cpu, without TF32",)


@pytest.mark.usefixtures("second_cpu")
def test_tf32_is_off_while_the_model_runs_unless_it_is_asked_for() -> None:
    class WithTf32(Moving):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            if self.moved and torch.backends.cudnn.allow_tf32:
                y = y.bfloat16().float()
            return self.last(y)  # type: ignore[no-any-return]

    assert check("device", WithTf32(), X).status is CheckStatus.PASSED
    assert check("device", WithTf32(), X, tf32=True).status is CheckStatus.FAILED
    assert check("device", Moving(), X, tf32=True).notes == ("on cpu, with TF32 as it is set",)


@pytest.mark.usefixtures("second_cpu")
@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="it is new in PyTorch 2.9")
@pytest.mark.parametrize(("model", "status"), [(Moving(), CheckStatus.PASSED), (Wrong(), CheckStatus.FAILED)])
def test_the_new_setting_of_tf32_is_off_meanwhile_and_put_back(model: nn.Module, status: CheckStatus) -> None:
    with preserved_global_state():
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert check("device", model, X).status is status
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"


@pytest.mark.usefixtures("second_cpu")
def test_settings_that_pytorchs_own_tests_froze_are_switched_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # what importing torch.testing._internal.common_utils does
    flags = torch.backends.flags_frozen.__globals__  # type: ignore[attr-defined]
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", False)
    with pytest.raises(RuntimeError, match="not allowed to set"):
        torch.backends.cudnn.allow_tf32 = False
    assert check("device", Moving(), X).status is CheckStatus.PASSED
    assert check("device", Wrong(), X).status is CheckStatus.FAILED


def test_a_machine_without_a_gpu_is_not_applicable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available", list)
    assert "no GPU that PyTorch sees" in check("device", Moving(), X).reason
    for name in ("cpu", "cpu:0"):
        assert f"sees no other device '{name}' here" in check("device", Moving(), X, to=name).reason
    assert check("device", Moving(), X, to="gpu").status is CheckStatus.ERROR


@pytest.mark.cuda
def test_a_constant_on_the_cpu_is_found_and_one_on_its_device_passes() -> None:
    result = check("device", OnTheCpu(), X)
    assert result.status is CheckStatus.FAILED
    assert result.operation == "add_1_3"
    assert line_of(result).endswith("# on the CPU")
    assert check("device", OnItsDevice(), X).status is CheckStatus.PASSED
    model, x = OnItsDevice().cuda(), X.cuda()
    assert check("device", model, x).notes == ("on cpu, without TF32",)
    for name in ("cuda", "cuda:0"):
        assert check("device", model, x, to=name).status is CheckStatus.NOT_APPLICABLE


@pytest.mark.cuda
def test_convolutions_in_tf32_differ_and_in_float32_pass() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 8, 3)), torch.rand(2, 64, 24, 24)
    assert check("device", model, x).status is CheckStatus.PASSED
    if torch.cuda.get_device_capability() >= (8, 0):
        result = check("device", model, x, tf32=True)
        assert result.operation == "conv2d_1_1"
