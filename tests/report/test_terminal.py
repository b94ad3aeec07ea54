from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Severity
from pytest_torchlens.records import Stage
from pytest_torchlens.records import Status
from pytest_torchlens.records import Unproven
from pytest_torchlens.records.operation import SourcePlace
from pytest_torchlens.report import terminal_table
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted


def cells(text, name):
    row = next(line for line in text.splitlines() if line.startswith(name))
    return row.split()


def test_a_row_tells_what_was_found():
    text = terminal_table([passed()], width=120)
    header, rule, row = text.splitlines()
    for word in ("model", "params", "ops", "layers", "fwd ms", "act. MB", "verdict", "checked", "edges"):
        assert word in header
    assert set(rule) == {"-", " "}
    assert row.split() == ["torchvision:alexnet", "61.1M", "24", "24", "12.3", "4.8", "passed", "24", "24"]


def test_what_is_not_known_is_a_dash():
    text = terminal_table([ModelReport(zoo="own", name="net")], width=120, ascii=True)
    assert cells(text, "own:net") == ["own:net", "-", "-", "-", "-", "-", "not-validated", "-", "-"]


def test_a_failed_verdict_names_the_operation_and_what_to_do():
    text = terminal_table([refuted()])
    assert "FAILED replay at conv2d_2_4" in text
    head, *rest = text.split("\n\n")[1].splitlines()
    assert head.startswith("torchvision:swapped FAILED in replay at conv2d_2_4: replay gave other values: 3 of")
    assert rest == [
        "  where: conv2d_2_4, zoo/net.py:48, in forward",
        "  cause: the model reads a counter that each forward pass raises",
        "  to do: set model.counter = 0 in the zoo's `prepare`, or mark the model as stateful",
    ]


def test_a_failed_verdict_still_tells_its_counts():
    assert cells(terminal_table([refuted()], width=120), "torchvision:swapped")[-2:] == ["24", "24"]


def test_an_error_tells_its_stage_and_the_models_line():
    text = terminal_table([raised()])
    assert cells(text, "torchvision:broken")[-4:] == ["FAILED", "forward", "–", "–"]
    head, *rest = text.split("\n\n")[1].splitlines()
    assert head == (
        "torchvision:broken FAILED in forward: "
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x512 and 256x10)"
    )
    assert rest[0] == "  where: /models/zoo/head.py:12, in forward"
    assert rest[1].startswith("  to do: ")


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.DONE])
def test_every_stage_has_something_to_do(stage):
    assert "to do: " in terminal_table([raised(stage=stage)])


def test_a_failure_without_reason_tells_its_stage():
    report = ModelReport(zoo="own", name="net", outcome=Outcome.FAILED, stage=Stage.COMPARE)
    assert "own:net FAILED in compare: failed in stage compare" in terminal_table([report])


def test_a_message_of_many_lines_is_cut_to_its_first():
    error = ErrorRecord(stage=Stage.BUILD, type="ValueError", message="first\nsecond")
    text = terminal_table([replace(raised(), error=error, stage=Stage.BUILD)])
    assert "ValueError: first …" in text
    assert "second" not in text


@pytest.mark.parametrize(
    ("outcome", "word"),
    [(Outcome.SKIPPED, "skipped"), (Outcome.XFAILED, "xfailed"), (Outcome.PASSED, "passed-with-tolerance")],
)
def test_other_outcomes_have_their_word(outcome, word):
    report = passed()
    assert report.verdict is not None
    tolerant = replace(report.verdict, status=Status.PASSED_WITH_TOLERANCE)
    assert word in terminal_table([replace(report, outcome=outcome, verdict=tolerant)], width=120)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_width_is_kept(width):
    models = [passed("x" * 300), refuted("swapped"), passed()]
    table = terminal_table(models, width).split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= width


def test_80_columns_hold_nearly_every_column():
    text = terminal_table([passed(), passed("resnet18")], width=80)
    assert text.splitlines()[0].endswith("verdict  checked  edges")
    assert "act. MB" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [75, 100, 200])
def test_a_model_is_named_as_on_the_command_line_whatever_the_width(width):
    assert "torchvision:alexnet" in terminal_table([passed()], width=width)


def unproven(*reasons):
    report = passed()
    assert report.verdict is not None
    return replace(report, verdict=replace(report.verdict, status=Status.UNPROVEN, unproven=reasons))


def test_each_reason_of_unproven_models_is_shown_once_with_the_first_place():
    state = Unproven(message="observer: it keeps state")
    output = Unproven(
        message="the output depends on no input", operation="add_1_1", source_place=SourcePlace("a.py", 3, "forward")
    )
    lines = terminal_table([passed(), unproven(state, output), unproven(state)], width=120).splitlines()
    assert [line.split()[6] for line in lines[2:5]] == ["passed", "unproven", "unproven"]
    assert lines[5:] == [
        "unproven: observer: it keeps state (in torchvision:alexnet)",
        "unproven: the output depends on no input (in torchvision:alexnet, add_1_1, a.py:3, in forward)",
    ]


def test_more_than_ten_reasons_are_counted():
    reasons = [Unproven(message=f"reason {number}") for number in range(12)]
    lines = terminal_table([unproven(*reasons)], width=120).splitlines()
    shown = [f"unproven: reason {number} (in torchvision:alexnet)" for number in range(10)]
    assert lines[3:] == [*shown, "unproven: 2 more reasons"]


def test_severe_findings_stand_in_the_verdict_and_below_the_table():
    place = AuditPlace(operation="log_1_1", source_line="a.py:3, in forward")
    finding = AuditFinding(rule="not-a-number", severity=Severity.HIGH, title="NaN", places=(place,), num_places=1)
    low = replace(finding, severity=Severity.LOW)
    lines = terminal_table([replace(passed(), findings=(finding, low))], width=120).splitlines()
    assert "passed, 1 high finding" in lines[2]
    assert lines[3:] == ["high: torchvision:alexnet: NaN, at 1 place: log_1_1, a.py:3, in forward"]


def test_operations_equal_within_tolerance_are_counted():
    report = passed()
    assert report.verdict is not None
    parts = tuple(replace(part, tolerated=3 if part.name == "replay" else 0) for part in report.verdict.parts)
    verdict = replace(report.verdict, status=Status.PASSED_WITH_TOLERANCE, parts=parts)
    assert "passed-with-tolerance (3 ops)" in terminal_table([replace(report, verdict=verdict)], width=120)


def test_a_narrow_terminal_keeps_what_matters():
    header = terminal_table([refuted()], width=50).splitlines()[0]
    assert header.split() == ["model", "ops", "verdict", "checked"]


@pytest.mark.parametrize("name", ["naïve", "日本語", "bell\a\x1b[31mred\nline"])
def test_ascii_and_no_control_characters(name):
    text = terminal_table([passed(name), raised(name)], ascii=True)
    assert text.isascii()
    assert all(char.isprintable() or char == "\n" for char in text)


def test_only_the_first_are_shown_but_all_that_failed():
    models = [passed(f"net{i}") for i in range(30)] + [refuted("late")]
    text = terminal_table(models, top=5)
    assert "net4" in text
    assert "net5" not in text
    assert "torchvision:late" in text
    assert "… and 25 more, none of which failed" in text


def test_no_models_is_an_empty_table():
    assert terminal_table([]).startswith("model")
