"""What a baseline keeps of numbers suffices for a comparison, and older files are still read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_torchlens.baseline import precision
from pytest_torchlens.baseline import sketch
from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.distance import Error
from pytest_torchlens.baseline.distance import error_between
from pytest_torchlens.baseline.precision import pack
from pytest_torchlens.baseline.precision import rounded
from pytest_torchlens.baseline.precision import unpack
from pytest_torchlens.baseline.sketch import numbers_of
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot_file import parse_snapshot
from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.records import UNRESOLVED
from pytest_torchlens.records import Change
from pytest_torchlens.records import size_text
from tests.baseline.samples import Small
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.samples import snapshot_of
from tests.baseline.samples import tampered_snapshot

LIMITS = {torch.float32: 2.0**-18, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float64: 2.0**-41}
"""The smallest RMS that a comparison allows an operation's own error: half of `own` in `baseline/distance.py`."""
RESOLVES = {dtype: UNRESOLVED[dtype is torch.float64] for dtype in LIMITS}
SIZES = (1, 3, 17, 1000, 40_000)


def tensors(dtype: torch.dtype, size: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values, and the same with errors whose RMS is `scale` of theirs; both as `dtype` has them."""
    generator = torch.Generator().manual_seed(size)
    values = (torch.randn(size, generator=generator, dtype=torch.float64) * 3 + 1).to(dtype)
    rms = float(values.double().square().mean().sqrt())
    error = torch.randn(size, generator=generator, dtype=torch.float64)
    error *= scale * rms / error.square().mean().sqrt()
    return values, (values.double() + error).to(dtype if scale > float(torch.finfo(dtype).eps) else torch.float64)


def measured(values: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> Error:
    """Return the error between two tensors; the second has more digits than its dtype where errors are small."""
    first, second = numbers_of(values, "a"), numbers_of(other, "b")
    if other.dtype is not dtype:
        second = rounded(second, is_float64=dtype is torch.float64)
    found = error_between(first, second, values.numel())
    assert found is not None
    return found


@pytest.fixture
def exact(monkeypatch):
    """Return a function that measures without any rounding."""

    def measure(values: torch.Tensor, other: torch.Tensor) -> Error:
        with monkeypatch.context() as patch:
            patch.setattr(sketch, "rounded", lambda numbers, is_float64: numbers)
            first, second = numbers_of(values, "a"), numbers_of(other, "b")
        found = error_between(first, second, values.numel())
        assert found is not None
        return found

    return measure


_DIVISOR = 5e-4
"""How far off an error is that is divided by an RMS of four digits, relative."""


def _errors(dtype: torch.dtype, exact) -> list[tuple[float, float]]:
    """Return the RMS with and without rounding, for errors from a hundredth of the limit to a hundred times it."""
    found = []
    for size in SIZES:
        for share in (0.01, 0.1, 0.5, 0.9, 1.1, 2.0, 100.0):
            values, other = tensors(dtype, size, share * LIMITS[dtype])
            found.append((measured(values, other, dtype).nrms, exact(values, other).nrms))
    return found


@pytest.mark.parametrize("dtype", LIMITS)
def test_rounding_moves_an_estimated_error_by_less_than_a_baseline_claims_to_resolve(dtype, exact):
    assert RESOLVES[dtype] <= LIMITS[dtype] / 8
    assert all(abs(kept - true) <= RESOLVES[dtype] + _DIVISOR * true for kept, true in _errors(dtype, exact))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_four_bits_less_would_not_suffice(dtype, exact, monkeypatch):
    monkeypatch.setattr(precision, "BITS", precision.BITS - 4)
    monkeypatch.setattr(precision, "BITS_FLOAT64", precision.BITS_FLOAT64 - 4)
    assert any(abs(kept - true) > RESOLVES[dtype] + _DIVISOR * true for kept, true in _errors(dtype, exact))


def test_an_error_is_estimated_within_two_fifths():
    found = []
    for seed in range(300):
        generator = np.random.Generator(np.random.Philox(seed))
        values = torch.from_numpy(generator.standard_normal(500))
        error = torch.from_numpy(generator.standard_normal(500)) * 1e-3
        true = float(error.square().mean().sqrt() / values.square().mean().sqrt())
        estimate = error_between(numbers_of(values, "a"), numbers_of(values + error, "b"), 500)
        assert estimate is not None
        found.append(estimate.nrms / true)
    off = sorted(abs(ratio - 1) for ratio in found)
    assert off[int(0.95 * len(off))] < 0.4
    assert 0.95 < math.sqrt(sum(ratio**2 for ratio in found) / len(found)) < 1.05, "the square is without bias"


def test_what_is_too_small_to_resolve_is_told_as_an_upper_bound():
    values = torch.linspace(1, 2, 4096)
    other = values.clone()
    other[7] = torch.nextafter(other[7], torch.tensor(9.0))
    found = error_between(numbers_of(values, "a"), numbers_of(other, "b"), 4096)
    assert found == Error(UNRESOLVED[0], UNRESOLVED[0])
    assert size_text(found.nrms) == "at most 1.2e-07"
    assert size_text(5e-7) == "5e-07"


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 0.0],
        [1.0 - 2.0**-24] * 3,
        [5e-324, 1e-310],
        [1e300, -1e300, 3.0],
        [2.0**-149],
        [3e38, 2e38, 1e38, 3e38],
        [math.inf, 1.0],
        [math.nan],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounded_numbers_come_back_from_their_bytes_and_are_not_rounded_again(values, dtype):
    numbers = numbers_of(torch.tensor(values, dtype=dtype), "d")
    assert rounded(numbers, is_float64=dtype is torch.float64).sketch == numbers.sketch
    assert not numbers.sketch or unpack(pack(numbers.sketch)) == numbers.sketch


def test_statistics_have_four_digits_of_the_rms():
    found = numbers_of(torch.tensor([123.456789, -0.0123456789, 1000.123456]), "d")
    assert (found.mean, found.rms, found.low, found.high) == (374.5, 581.8, 0.0, 1000.1)
    assert precision.unit(found) == 0.1


def test_sums_that_overflow_are_not_kept():
    assert rounded(Numbers(digest="a", rms=math.inf, sketch=(math.inf, 0.0)), is_float64=True).sketch == ()


@pytest.fixture(scope="module")
def small():
    return snapshot_of(filled(Small()), an_input(2, 3, 8, 8))


def test_a_change_within_rounding_of_an_early_kernel_leaves_what_people_read_alone(small):
    def rounding(function, arguments, keywords):
        return function(*arguments, **keywords) * (1 + 2.0**-22)

    changed = tampered_snapshot(filled(Small()), an_input(2, 3, 8, 8), "conv/conv2d", rounding)
    before, after = (to_text(side).splitlines() for side in (small, changed))
    place = before.index('"sketches": [')
    assert before[place:] != after[place:]
    moved = [pair for pair in zip(before[:place], after[:place], strict=True) if pair[0] != pair[1]]
    assert len(moved) <= 1, moved


def test_a_line_of_numbers_can_be_read(small):
    line = next(line for line in to_text(small).splitlines() if line.startswith('"act/gelu":{"mean"'))
    row = json.loads("{" + line.rstrip(",") + "}")["act/gelu"]
    assert list(row) == ["mean", "rms", "low", "high"]
    assert all(len(str(value)) <= len("-12.3456") for value in row.values())


FIRST_VERSION = Path(__file__).parent / "older" / "version_1.json"


def test_files_of_the_first_version_are_read_and_written_anew(tmp_path):
    old = read(FIRST_VERSION)
    text = to_text(old)
    assert '"version": 2,' in text
    assert parse_snapshot(text) == old
    assert compare(old, parse_snapshot(text)).verdict is Change.IDENTICAL
    numbers = next(iter(old.measured.values())).numbers
    assert numbers["act/gelu"].rms == 0.3709
    assert numbers["drop/dropout"] == Numbers(digest="d8c56e4de56bb26d"), "a view has a digest alone"


def test_a_pass_is_compared_with_a_baseline_of_the_first_version(small):
    old = read(FIRST_VERSION)
    one = next(iter(old.measured.values()))
    unlike = replace(old, measured=dict.fromkeys(small.measured, one))
    found = compare(unlike, small)
    assert not found.fails, found.findings

    def wrong(function, arguments, keywords):
        return function(*arguments, **keywords) * 1.01

    worse = compare(unlike, tampered_snapshot(filled(Small()), an_input(2, 3, 8, 8), "act/gelu", wrong))
    assert (worse.verdict, worse.first.operation) == (Change.REGRESSION, "act/gelu")
    assert worse.findings[0].nrms == pytest.approx(0.01, rel=0.4)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["0", "1 2 3", "AAAA"], "statistics cannot be read"),
        (["0", {"odd": 1}], "has an unknown 'odd'"),
        ([], "expected a row of 1 or 2 or 3 or 4 entries, got 0"),
    ],
)
def test_a_damaged_row_of_the_first_version_is_refused(row, message):
    raw = json.loads(FIRST_VERSION.read_text(encoding="utf-8"))
    next(iter(raw["measured"].values()))["numbers"]["/input"] = row
    with pytest.raises(ValueError, match=message):
        parse_snapshot(json.dumps(raw))


def test_one_step_of_rounding_in_one_sum_is_not_taken_for_one_element():
    others, step = [0.5] * 14, 2.0**-24
    before = Numbers(digest="a", rms=0.004, high=2.0**-6, sketch=(1.0, 0.5, *others))
    found, clear = (
        error_between(before, replace(before, digest="b", sketch=(1.0, 0.5 + size, *others)), size=10**6)
        for size in (step, 4 * step)
    )
    assert found == Error(UNRESOLVED[0], UNRESOLVED[0]), "each of many elements may differ by less than shows"
    assert clear is not None
    assert clear.largest == 4 * step / 2.0**-6


@pytest.mark.parametrize(("error", "change"), [(2.0**-50, Change.LOCAL_CHANGE), (2.0**-35, Change.REGRESSION)])
def test_a_stored_float64_pass_tells_rounding_from_an_error(error, change):
    def off(function, arguments, keywords):
        return function(*arguments, **keywords) * (1 + error)

    model, x = filled(Small().double()), an_input(2, 3, 8, 8, dtype=torch.float64)
    stored = parse_snapshot(to_text(snapshot_of(model, x)))
    found = compare(stored, tampered_snapshot(model, x, "act/gelu", off))
    assert (found.verdict, found.first.operation) == (change, "act/gelu")
