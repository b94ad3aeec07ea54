from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from pytest_torchlens.run.repro.gap import Form
from pytest_torchlens.run.repro.gap import gap_between
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.program import program_of
from pytest_torchlens.run.repro.script import program_text
from pytest_torchlens.run.repro.shrink import shrink
from tests.run.repro.programs import Fault
from tests.run.repro.programs import Here
from tests.run.repro.programs import history_of
from tests.run.repro.test_program import Odd


def shrunk(function, x: torch.Tensor, fault: Fault) -> tuple[Program, Here]:
    recording = history_of(Odd(function), x).recording
    program, bench = program_of(recording, [len(recording.calls) - 1], lambda *_: None), Here(fault)
    outcome = bench.run(program)
    assert outcome.gap is not None
    return shrink(program.with_result(outcome.place), bench, outcome.gap), bench


def shapes(program: Program) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in program.inputs.items()}


def test_inputs_become_one_element_where_every_element_is_wrong():
    weight, bias = torch.randn(64), torch.randn(64)
    program, bench = shrunk(
        lambda x: F.layer_norm(x, (64,), weight, bias), torch.randn(32, 8, 64), lambda y, _: y * 1.01
    )
    assert shapes(program) == {"x": (1, 1, 1), "x1": (1,), "x2": (1,)}
    assert "layer_norm(x, (1,)" in program_text(program)
    assert bench.trials < 400


def test_a_fault_of_large_sizes_keeps_them():
    """Rows of 16 and more take another path, as vectorised kernels do."""
    program, _ = shrunk(F.gelu, torch.randn(40, 64), lambda y, given: y * 1.01 if given["x"].shape[-1] >= 16 else y)
    assert shapes(program) == {"x": (1, 16)}


def test_a_fault_at_one_element_keeps_that_element():
    x = torch.zeros(8, 8, 8)
    x[5, 6, 7] = 3
    program, _ = shrunk(torch.exp, x, lambda y, given: torch.where(given["x"] == 3, y * 1.01, y))
    assert program.inputs["x"].flatten().tolist() == [3.0]


def test_strides_stay_where_the_fault_needs_them():
    def fault(y: torch.Tensor, _: object) -> torch.Tensor:
        return y if y.is_contiguous() else y * 1.01

    program, _ = shrunk(torch.exp, torch.randn(32, 16).t(), fault)
    assert not program.inputs["x"].is_contiguous()
    assert program.size < 16
    plain, _ = shrunk(torch.exp, torch.randn(32, 16).t(), lambda y, _: y * 1.01)
    assert shapes(plain) == {"x": (1, 1)}


def test_a_much_smaller_difference_is_another_fault():
    """Where the large error is gone, rounding may still differ: that is not what is to be shown."""

    def fault(y: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return y * (1.01 if len(given["x"]) >= 4 else 1 + 1e-6)

    program, _ = shrunk(torch.exp, torch.randn(32), fault)
    assert shapes(program) == {"x": (4,)}


@pytest.mark.parametrize(
    ("expected", "got", "form", "size"),
    [
        (torch.ones(4), torch.tensor([1, 1, 1, 1.5]), Form.VALUES, 0.5),
        (torch.ones(4), torch.tensor([1, 1, 1, math.nan]), Form.VALUES, math.inf),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 3j]), Form.VALUES, math.sqrt(2)),
        (torch.tensor([True, False]), torch.tensor([True, True]), Form.VALUES, 1.0),
        (torch.ones(4), torch.ones(4, dtype=torch.float64), Form.FORM, math.inf),
        (torch.ones(4), torch.ones(2, 2), Form.FORM, math.inf),
        (torch.ones(2, 2), torch.ones(2, 2).t(), Form.FORM, math.inf),
    ],
)
def test_gaps(expected: torch.Tensor, got: torch.Tensor, form: Form, size: float):
    gap = gap_between(expected, got)
    assert gap is not None
    assert (gap.form, gap.size) == (form, pytest.approx(size))
    assert gap_between(expected, expected.clone()) is None


def test_equal_nan_and_infinity_are_no_gap():
    odd = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert gap_between(odd, odd.clone()) is None
    assert gap_between(odd, odd.roll(1)) is not None
