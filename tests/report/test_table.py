"""The table of results, of made-up reports."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_torchlens.report import ResultTable
from tests.report.samples import passed
from tests.report.samples import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("forward_ms", "shown", "ratio"), [(2.0, "2.00", "500.0"), (0.004, "0.00", ""), (0.0, "0.00", ""), (None, "", "")]
)
def test_a_pass_of_no_measurable_time_is_nothing_to_divide_by(
    tmp_path: Path, forward_ms: float | None, shown: str, ratio: str
):
    report = passed()
    assert report.verdict is not None
    report = replace(report, forward_ms=forward_ms, verdict=replace(report.verdict, seconds=1.0))
    ResultTable(tmp_path / "t.csv").add(report, run(report).environment)
    with (tmp_path / "t.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["forward_ms"], row["validate_ratio"]) == (shown, ratio)
