"""The page of all fields is what the docstrings say, and leaves none out."""

from __future__ import annotations

import pytest

from tests.docs.pages import DOCS
from tests.docs.pages import script
from tests.history.test_table import MODEL_SIDE
from tests.history.test_table import OPERATION_SIDE


@pytest.fixture(scope="module")
def generator():
    return script("generate_fields")


def test_the_page_is_up_to_date(generator):
    page = (DOCS / "fields.md").read_text(encoding="utf-8")
    assert page == generator.page(), "run: python docs/generate_fields.py"


def test_every_field_has_its_line(generator):
    lines = dict(line.strip("| ").split(" | ", 1) for line in generator.page().splitlines() if line.startswith("| `"))
    assert {f"`{name}`" for name in [*MODEL_SIDE, *OPERATION_SIDE]} <= set(lines)
    assert [name for name, text in lines.items() if not text.strip()] == []


def test_a_field_without_a_docstring_is_seen(generator):
    assert dict(generator.fields(WithHole)) == {"told": "What it is.", "untold": ""}


class WithHole:
    told: int
    """What it is.

    More of it.
    """
    untold: int
