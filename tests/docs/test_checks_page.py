"""The page of results of checks says what its tables say, and that of checks what each costs."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from pytest_torchlens.checks.catalog import CHECKS
from tests.docs.pages import DOCS
from tests.docs.pages import script

TABLES = sorted((DOCS / "zoo" / "checks").glob("*.csv"))
NAMES = [check.name for check in CHECKS]


def cells_of(path: Path) -> list[tuple[dict[str, str], str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row, name, row[name]) for row in csv.DictReader(file) for name in NAMES if row.get(name)]


def generator() -> ModuleType:
    return script("make_checks_page")


def test_the_page_is_what_its_generator_makes_of_the_tables():
    assert generator().page() == (DOCS / "checks_results.md").read_text(encoding="utf-8")


def test_a_section_says_which_checks_have_no_results():
    make = generator()
    row = dict.fromkeys(make.COLUMNS, "") | {"model": "one", "torch": "2"} | dict.fromkeys(NAMES, "passed")
    assert f"{len(NAMES)} of the {len(NAMES)} checks ran, each on all models.\n" in section_of(make, [row])
    without = row | {"model": "two", NAMES[-1]: ""}
    assert f"{len(NAMES)} of the {len(NAMES)} checks ran, all of these on 1 of the models.\n" in section_of(
        make, [row, without]
    )
    assert f"No results here of `{NAMES[-1]}`.\n" in section_of(make, [without])


def section_of(make: ModuleType, rows: list[dict[str, str]]) -> str:
    return "\n".join(make._section("torchvision", rows))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_counts_are_those_of_the_table(path: Path):
    cells = cells_of(path)
    page = (DOCS / "checks_results.md").read_text(encoding="utf-8")
    section = page.partition(f"## {path.stem}\n")[2].partition("\n## ")[0]
    assert f"{len({row['model'] for row, _, _ in cells})} models, {len(cells):,} results" in section
    for status, count in Counter(text.partition(":")[0].partition(",")[0] for _, _, text in cells).items():
        assert f"{count:,} {status}" in section


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_person_has_looked_at_each_failure(path: Path):
    bad = [(row, name) for row, name, text in cells_of(path) if text.startswith(("failed", "error", "tie"))]
    assert [(row["model"], name) for row, name in bad if f"{name}: " not in row["remark"]] == []


def test_the_table_of_costs_has_each_check_with_its_cost_and_what_was_measured_on_what():
    page = (DOCS / "checks.md").read_text(encoding="utf-8")
    lines = page.partition("| check | plain passes | measured |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(row[0], float(row[1])) for row in rows] == [(f"`{check.name}`", check.cost) for check in CHECKS]
    for name, cost, measured, _ in rows:
        figure = re.match(r"([\d.]+)(?: to [\d.]+)? on (?:resnet50|timm's resnet50|the Llama)", measured)
        assert figure is not None, name
        assert 2 / 3 < float(figure[1]) / float(cost) < 3 / 2, name
