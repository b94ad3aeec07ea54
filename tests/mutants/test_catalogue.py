from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import AnchorError
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
PARTS = {"capture", "replay", "validate", "baseline", "zoo", "measure", "recorder", "report"}


def _texts() -> dict[str, str]:
    return {file: (ROOT / "pytest_torchlens" / file).read_text(encoding="utf-8") for file in {m.file for m in MUTANTS}}


def test_each_text_to_replace_stands_exactly_once_where_it_is_looked_for():
    texts, wrong = _texts(), []
    for mutant in MUTANTS:
        try:
            mutant.place(texts[mutant.file])
        except AnchorError as error:
            wrong.append(str(error))
    assert wrong == []


def test_each_change_is_another_program_that_python_can_read():
    texts = _texts()
    for mutant in MUTANTS:
        text = texts[mutant.file]
        assert ast.dump(ast.parse(mutant.apply(text))) != ast.dump(ast.parse(text)), str(mutant)


def test_the_catalogue_has_changes_in_all_parts_that_must_not_be_wrong():
    assert len(MUTANTS) >= 80
    assert Counter(MUTANTS).most_common(1)[0][1] == 1
    assert {mutant.file.partition("/")[0] for mutant in MUTANTS} >= PARTS


def test_few_changes_are_called_equivalent_and_each_of_these_has_a_reason():
    reasons = [mutant.equivalent for mutant in MUTANTS if mutant.equivalent]
    assert len(reasons) <= 0.05 * len(MUTANTS)
    assert all(len(reason.split()) >= 8 for reason in reasons)


SOURCE = """
LIMIT = 3


class Ring:
    def fill(self):
        return 1


class Other:
    def fill(self):
        return 1
"""


@pytest.mark.parametrize(
    ("old", "within", "message"),
    [
        ("LIMIT = 4", "", "stands 0 times in ring.py:"),
        ("return 1", "", "stands 2 times in ring.py:"),
        ("LIMIT = 3", "Ring.fill", "stands 0 times in ring.py, Ring.fill:"),
        ("return 1", "Ring.empty", "ring.py has no Ring.empty:"),
    ],
)
def test_a_text_that_stands_nowhere_or_twice_is_an_error(old: str, within: str, message: str):
    with pytest.raises(AnchorError, match=message):
        Mutant("ring.py", old, "pass", within).apply(SOURCE)


def test_a_change_is_made_in_the_named_function_alone():
    changed = Mutant("ring.py", "return 1", "return 2", within="Other.fill").apply(SOURCE)
    assert changed == SOURCE[: SOURCE.rindex("1")] + "2\n"
    assert list(Mutant("ring.py", "return 1", "", within="Other.fill").lines(SOURCE)) == [12]
