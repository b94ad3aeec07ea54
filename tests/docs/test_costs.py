"""The page about costs, and the README's lines, say what the file of figures says."""

from __future__ import annotations

import pytest

from benchmarks.figures import FILE
from benchmarks.figures import Figure
from benchmarks.figures import Figures
from tests.docs.pages import DOCS
from tests.docs.pages import script

README = DOCS.with_name("README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generator():
    return script("generate_costs")


@pytest.fixture
def figures():
    return Figures.load(FILE)


def test_the_page_is_up_to_date(generator, figures):
    assert (DOCS / "costs.md").read_text(encoding="utf-8") == generator.page(figures), (
        "run: python docs/generate_costs.py"
    )


def test_the_readme_is_up_to_date(generator, figures):
    assert generator.lines(figures) in README, "run: python docs/generate_costs.py"


def test_another_figure_makes_another_page_and_other_lines(generator, figures):
    figures.tables["CPU time"]["resnet50"]["validated"] = Figure(80.0, 81.0, 82.0)
    assert "81" in generator.lines(figures)
    assert generator.with_lines(README, figures) != README
    assert "| 81 |" in " ".join(generator.page(figures).split())
