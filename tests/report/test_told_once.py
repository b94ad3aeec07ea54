"""Calls in tests that fail by one fault have one entry with a count; models of a zoo have one each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_torchlens.records import TESTS_ZOO
from pytest_torchlens.report import github_annotations
from pytest_torchlens.report import markdown
from pytest_torchlens.report import terminal_table
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted
from tests.report.samples import run


def in_tests(report):
    return replace(report, zoo=TESTS_ZOO)


def at_line(report, line):
    parts = tuple(
        replace(part, failures=tuple(replace(one, source_line=line, source_place=None) for one in part.failures))
        for part in report.verdict.parts
    )
    return replace(report, verdict=replace(report.verdict, parts=parts))


def of_class(report, name):
    return replace(report, history=replace(report.history, model_name=name))


SAME = [in_tests(refuted(name)) for name in ("test_a", "test_b", "test_c")]
DIFFERENT = {
    "another line": at_line(in_tests(refuted("test_d")), "zoo/net.py:50, in forward"),
    "another class": of_class(in_tests(refuted("test_d")), "Other"),
    "of a zoo": refuted("test_d"),
    "an exception": in_tests(raised("test_d")),
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT)
def test_one_fault_has_one_entry(other):
    models = [*SAME, other, in_tests(passed("test_e"))]
    table = terminal_table(models, 160)
    assert [line.split()[0].rpartition(":")[2] for line in table.splitlines()[2:5]] == ["test_a", "test_d", "test_e"]
    assert table.count("(3 calls)") == 1
    assert table.count("  also: 2 more calls with the same fault") == 1
    text = markdown(run(*models))
    assert text.startswith("### pytest-torchlens: ❌ 4 failed, ✅ 1 passed")
    assert [text.count(f"test&#95;{name}") for name in "abcde"] == [2, 0, 0, 2, 1]
    assert text.count("(3 calls)") == 1
    errors = [line for line in github_annotations(models, Path()) if line.startswith("::error")]
    assert ["2 more calls with the same fault" in line for line in errors] == [True, False]


def test_faults_without_a_line_have_an_entry_each():
    models = [at_line(report, "") for report in SAME]
    assert "with the same fault" not in terminal_table(models, 160)
    assert markdown(run(*models)).count("- ❌") == 3


def test_models_of_a_zoo_that_fail_alike_have_an_entry_each():
    models = [refuted("one"), refuted("two")]
    assert terminal_table(models, 160).count(" FAILED in replay") == 2
    assert markdown(run(*models)).count("- ❌") == 2
