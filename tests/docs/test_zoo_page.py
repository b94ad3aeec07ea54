"""The page of whole zoos says what its tables say."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from pytest_torchlens.report.results_table import COLUMNS

FOLDER = Path(__file__).parents[2] / "docs" / "zoo"
TABLES = sorted(FOLDER.glob("*.csv"))
PROVEN = [column for column in COLUMNS if column != "checks"]
"""The tables were made by ``--lens-validate`` alone."""


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_each_table_is_told_of_as_it_stands(path: Path):
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) in (PROVEN, [*PROVEN, "remark"])
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    section = page.partition(f"## {path.stem}\n")[2].partition("\n## ")[0]
    assert f" {len(rows)} of " in f" {section.strip()}"  # a sentence on the table may go before
    for verdict, count in Counter(row["verdict"] for row in rows).items():
        assert f"{count} {verdict}" in section


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_person_has_looked_at_each_row_that_is_not_green(path: Path):
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["verdict"].startswith(("passed", "skipped"))]
    assert [row["model"] for row in rows if not row.get("remark")] == []


def test_every_verdict_has_what_was_measured():
    for path in TABLES:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["verdict"].startswith("passed"):
                    assert int(row["edges"]) > 0, row
                    assert int(row["operations"]) > 0, row
                    assert float(row["forward_ms"]) > 0, row
                    assert row["torch"], row
