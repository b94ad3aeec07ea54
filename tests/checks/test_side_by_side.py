"""Where two passes of a model part, when one of them has operations that the other has not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pytest_torchlens.checks.catalog import PlannedCheck
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.checks.frame import run_checks
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import TwoLayers
from tests.checks.subjects import check
from tests.checks.subjects import line_of
from tests.checks.subjects import subject_of

X = torch.rand(1, 8, generator=torch.Generator().manual_seed(0))


class Added(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if len(y) > 1:
            y = y * 1.5  # at fault
        return y.tanh()


class AddedInPlace(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if len(y) > 1:
            y *= 1.5  # at fault
        return y.tanh()


class AddedAndArranged(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if len(y) > 1:
            y = torch.cat([y[:1] * 1.5, y[1:]])  # at fault
        return y.tanh()


class AddedAtTheEnd(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if len(y) > 1:
            y = y * 1.5  # at fault
        return y


class Lost(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if len(y) == 1:
            y = y * 1.5  # at fault
        return y.tanh()


class LostAtTheEnd(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if len(y) == 1:
            y = y * 1.5  # at fault
        return y


class AddedWithoutEffect(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if len(y) > 1:
            y = y.exp().log()
        return y * len(x)  # at fault


class LostWithoutEffect(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if len(y) == 1:
            y = y.exp().log()
        return y * len(x)  # at fault


class InHalf(TwoLayers):
    """Computes in half precision for several examples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            return functional.linear(x.half(), self.first.weight.half()).float()
        return self.first(x)  # type: ignore[no-any-return]  # at fault


class RoundedToHalf(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            x = x.half().float()  # at fault
        return self.first(x)  # type: ignore[no-any-return]


class UnderAutocast(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=len(x) > 1):
            return self.first(x).float()  # at fault


@pytest.mark.parametrize(
    ("model", "operation", "cause"),
    [
        (Added, "tanh_1_2", "only the other run has this mul, whose result is read here"),
        (AddedInPlace, "tanh_1_2", "only the other run has this mul, whose result is read here"),
        (AddedAndArranged, "tanh_1_2", "only the other run has this mul, whose result is read here"),
        (AddedAtTheEnd, "linear_1_1", "only the other run has this mul, whose result is read here"),
        (Lost, "mul_1_2", "the other run has not this operation, and gets"),
        (LostAtTheEnd, "mul_1_2", "the other run has not this operation, and gets"),
        (InHalf, "linear_1_1", "in its place the other run has linear ("),
        (RoundedToHalf, "linear_1_1", "only the other run has this half, whose result is read here"),
        (UnderAutocast, "linear_1_1", "the operation itself rounds more: its own error is "),
        (AddedWithoutEffect, "mul_1_2", "given inputs that agree, the operation gives another result"),
        (LostWithoutEffect, "mul_1_4", "given inputs that agree, the operation gives another result"),
    ],
)
def test_an_operation_that_one_pass_alone_has_is_at_fault_if_its_result_differs(
    model: type[TwoLayers], operation: str, cause: str
) -> None:
    result = check("batch-size", model().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# at fault")
    assert result.failure is not None
    assert result.failure.operation == operation
    assert result.failure.cause.startswith(cause)
    assert not torch.is_autocast_enabled("cpu")


def test_settings_that_two_passes_do_not_share_stay_with_none_of_the_later_checks() -> None:
    wanted = [PlannedCheck(known_checks()[name]) for name in ("batch-size", "repeat")]
    seen = []

    class Watched(UnderAutocast):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(x)

    first, second = run_checks(subject_of(Watched().eval(), X), wanted)
    assert first.status is CheckStatus.FAILED
    assert second.status is CheckStatus.PASSED
    assert not any(seen)
