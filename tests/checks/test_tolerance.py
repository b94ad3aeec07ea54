from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_torchlens.checks.compare import compare_outputs
from pytest_torchlens.checks.compare import words_of
from pytest_torchlens.checks.exact import exact_outputs
from pytest_torchlens.checks.results import apart
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.tolerance import FEW
from pytest_torchlens.checks.tolerance import is_plainly_explained
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import subject_of

GENERATOR = torch.Generator().manual_seed(0)
EXACT = torch.randn(4 * FEW, generator=GENERATOR, dtype=torch.float64)
NOISE = torch.randn(4 * FEW, generator=GENERATOR, dtype=torch.float64)
OTHER_NOISE = torch.randn(4 * FEW, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize(("times", "within"), [(0.5, True), (1.0, True), (1.9, True), (2.5, False), (30.0, False)])
def test_an_error_may_be_twice_that_of_the_reference(times: float, within: bool) -> None:
    reference, other = (EXACT + 1e-4 * NOISE).float(), (EXACT + times * 1e-4 * OTHER_NOISE).float()
    assert judge(other, reference, EXACT).within is within


@pytest.mark.parametrize(("size", "dtype"), [(FEW - 1, torch.float32), (4 * FEW, torch.bfloat16)])
def test_of_few_elements_and_in_half_precision_three_times_as_much(size: int, dtype: torch.dtype) -> None:
    reference, other = (EXACT + 0.1 * NOISE).to(dtype)[:size], (EXACT + 0.27 * OTHER_NOISE).to(dtype)[:size]
    assert judge(other, reference, EXACT[:size]).within
    assert not judge((EXACT + 0.4 * OTHER_NOISE).to(dtype)[:size], reference, EXACT[:size]).within


def test_some_last_places_are_explained_though_the_reference_has_no_error() -> None:
    exact = EXACT.float().double()
    other = exact.float() * (1 + 3 * 2.0**-23)
    assert judge(other, exact.float(), exact).within
    assert is_plainly_explained(other, exact.float())
    assert not judge(exact.float() * (1 + 9 * 2.0**-23), exact.float(), exact).within


def test_one_wrong_element_of_many_is_seen() -> None:
    reference = EXACT.float()
    other = reference.clone()
    other[7] += 2e-5  # little of the RMS error of 4,000 elements
    assert not judge(other, reference, EXACT).within
    assert not is_plainly_explained(other, reference)


def test_whole_numbers_and_infinities_must_be_equal() -> None:
    ones = torch.ones(3, dtype=torch.long)
    assert judge(ones, ones, ones).within
    assert not judge(ones + 1, ones, ones).within
    infinite = torch.tensor([1.0, torch.inf, torch.nan])
    assert judge(infinite, infinite, infinite.double()).within
    assert not judge(torch.tensor([1.0, -torch.inf, torch.nan]), infinite, infinite.double()).within
    assert not judge(torch.tensor([1.0, 2.0, torch.nan]), infinite, infinite.double()).within
    assert not judge(torch.ones(2), torch.ones(3), torch.ones(3).double()).within


class MaskedByBatch(nn.Module):
    """Returns an infinity whose sign depends on the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((len(x), 1), -torch.inf if len(x) == 1 else torch.inf)
        return torch.cat([self.layer(x), mask], 1)


def test_an_infinity_of_the_other_sign_fails() -> None:
    result = check("batch-size", MaskedByBatch(), torch.rand(1, 4))
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert result.failure.message.endswith("not the same numbers")


def test_a_number_of_values_and_an_error_are_worded_apart() -> None:
    zeros = torch.zeros(4)
    assert words_of(judge(zeros + 0.0892, zeros, zeros.double())) == "RMS error 0.089, explained are 0"
    assert words_of(judge(zeros + torch.inf, zeros, zeros.double())) == "not the same numbers"
    assert words_of(judge(zeros.long() + 1, zeros.long(), zeros.long())) == "4 values are other ones"


class Awkward(nn.Module):
    """Casts, makes tensors, writes in place, draws numbers, decides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("sum", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x).to(torch.float32).float()
        y = y + torch.arange(6, dtype=torch.float32) * torch.ones(6)
        y[:, 0].mul_(2)
        y = F.dropout(y, 0.5, training=True)
        self.sum.add_(y.sum(0))
        choice = y.argmax(1)
        return y[torch.arange(len(x)), choice] + self.sum[0], choice


def test_a_pass_in_float64_takes_the_same_numbers_decisions_and_writes() -> None:
    torch.manual_seed(0)
    model, x = Awkward(), torch.rand(4, 6)
    subject = subject_of(model, x)
    with torch.no_grad():
        exact = exact_outputs(subject, subject.history)
    assert exact.outputs["0"].dtype is torch.float64
    torch.testing.assert_close(exact.outputs["0"].float(), subject.outputs["0"])
    assert torch.equal(exact.outputs["1"], subject.outputs["1"])
    assert exact.rounded == ("dropout",)
    assert float(judge(subject.outputs["0"], subject.outputs["0"], exact.outputs["0"]).reference_error) > 0


def test_a_pass_in_float64_is_that_of_the_model_in_float64() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)), X
    model.eval()
    subject = subject_of(model, x)
    with torch.no_grad():
        exact = exact_outputs(subject, subject.history).outputs[""]
        assert torch.equal(exact, model.double()(x.double()))


X = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def test_whole_numbers_that_are_cast_go_on_in_float64() -> None:
    class Cast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.arange(3).float() @ x

    with torch.no_grad():
        exact = exact_outputs(subject := subject_of(Cast(), torch.rand(3, 2)), subject.history)
    assert exact.outputs[""].dtype is torch.float64


@pytest.mark.parametrize("count", [1, 1200])
def test_the_error_of_one_number_may_be_small_by_chance(count: int) -> None:
    class Product(nn.Module):
        """The product of two vectors, which is near zero: where its sum begins decides on its error."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[0] * x[1]).sum() * torch.ones(count)

    x = torch.randn(2, 512, generator=torch.Generator().manual_seed(0))
    x[1] -= x[0] * ((x[0] * x[1]).sum() - 0.01) / x[0].square().sum()
    subject = subject_of(Product(), x)
    with torch.no_grad():
        exact = subject.exact[""]
        limit = judge(subject.outputs[""], subject.outputs[""], exact).limit
        near = (exact + 1.2 * limit).float()
        assert not judge(near, subject.outputs[""], exact).within
        assert compare_outputs(subject, {"": near}).agrees
        assert not compare_outputs(subject, {"": (exact + 9.5 * limit).float()}).agrees
        assert not compare_outputs(subject, {"": near + 1e-3}).agrees
        near[0] += 90 * limit
        assert not compare_outputs(subject, {"": near}).agrees


def test_complex_numbers_that_differ_in_phase_alone_are_apart() -> None:
    one, other = torch.tensor([1 + 0j, 2j]), torch.tensor([1j, 2j])
    assert apart(one, other).tolist() == [2**0.5, 0.0]
    assert values_text(one, other) == "[0]: (1+0j) and 1j"
