"""State is read from fields of the records, whatever the notes beside it say."""

from __future__ import annotations

import json

import pytest

from pytest_torchlens.baseline.align import StepAlignment
from pytest_torchlens.baseline.environments import nearest_class
from pytest_torchlens.baseline.snapshot import Answer
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import parse_snapshot
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.baseline.wording import summary
from pytest_torchlens.draw.text import short_place
from pytest_torchlens.plugin.session import fits_no_model
from pytest_torchlens.plugin.session import missing_drawings
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import Environment
from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import Failure
from pytest_torchlens.records import Finding
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Operation
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.records import Stage
from pytest_torchlens.records import Status
from pytest_torchlens.records import TracedCall
from pytest_torchlens.records import TracedTest
from pytest_torchlens.records import Verdict
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json

FILE = "lens_baselines/z/m.json"


def test_whether_a_baseline_was_stored():
    assert summary([("z:m", Comparison(verdict=Change.NEW, stored=FILE))])[-1] == "stored: 1 model"
    worded = Comparison(verdict=Change.NEW, notes=(f"stored: {FILE}",))
    assert summary([("z:m", worded)])[-1].startswith("1 model has no baseline")


def test_the_cost_of_one_model_is_not_told_as_that_of_all():
    costs = [Finding(change=Change.LARGER, message=f"peak bytes +{size} %") for size in (20, 300)]
    every = [
        (f"z:{size}", Comparison(verdict=Change.LARGER, findings=(cost,)))
        for size, cost in zip("ab", costs, strict=True)
    ]
    assert "  larger: z:a, peak bytes +20 %" in summary(every[:1])
    assert "  larger: z:a, z:b" in summary(every)


def test_why_times_were_not_compared():
    untimed = [(name, Comparison(verdict=Change.IDENTICAL, untimed="no time yet")) for name in ("z:a", "z:b")]
    assert summary(untimed)[1:] == ["no time yet"]


@pytest.mark.parametrize("field", ["graph_unfit", "graph_failed"])
def test_why_there_is_no_graph(field: str):
    report = ModelReport(zoo="z", name="m", history=HistoryRecord(model_name="M"), **{field: "a reason"})
    (line,) = missing_drawings((report, ModelReport(zoo="z", name="n", notes=("--lens-graph does not fit: a note",))))
    assert line.startswith("no graph of 1 of 2 models: ")
    assert line.endswith(": a reason")
    assert fits_no_model([report]) is (field == "graph_unfit")


def test_what_was_not_checked():
    from pytest_torchlens.plugin.autotrace import report_section

    part = PartVerdict(name="completeness", status=Status.PASSED, unchecked=("a constant",), notes=("a note",))
    call = TracedCall(model="M", verdict=Verdict(status=Status.PASSED, parts=(part,)))
    assert report_section(TracedTest(results=(call,))) == "M: not checked: a constant"


def test_an_older_report_has_the_defaults():
    report = ModelReport(zoo="z", name="m", comparison=Comparison(verdict=Change.NEW))
    text = to_json(report).replace('"unwritten": [], ', "")
    for field in ("stored", "untimed", "unsaved", "unwritten", "graph_unfit", "graph_failed"):
        text = text.replace(f'"{field}":"",', "").replace(f',"{field}":""', "").replace(f'"{field}": "", ', "")
        assert f'"{field}"' not in text
    assert from_json(text, ModelReport) == report


PLACE = SourcePlace("/odd, in:7, in a/net.py", 48, "forward")
NAMES = {"layer_label": "a_1", "layer_label_w_pass": "a_1:1", "layer_label_short": "a", "layer_type": "a"}
NUMBERS = {"operation_num": 0, "layer_type_num": 1, "layer_total_num": 0}


@pytest.mark.parametrize(
    "record",
    [
        Operation(**NAMES, **NUMBERS, source_place=PLACE),
        EscapeRecord(function="item", source_place=PLACE),
        Failure(message="m", source_place=PLACE),
        Finding(change=Change.DRIFT, source_place=PLACE),
    ],
    ids=lambda record: type(record).__name__,
)
def test_where_the_code_is(record):
    assert record.source_line == "/odd, in:7, in a/net.py:48, in forward"
    fields = json.loads(to_json(record))
    assert fields["source_place"] == {"file": PLACE.file, "line": 48, "function": "forward"}
    assert from_json(json.dumps(fields), type(record)).source_place == PLACE
    del fields["source_place"]  # as in a file of an older version
    older = from_json(json.dumps(fields), type(record))
    assert (older.source_place, older.source_line) == (PLACE, record.source_line)
    shown = from_json(json.dumps(fields | {"source_line": "somewhere: 3"}), type(record))
    assert (shown.source_place, shown.source_line) == (None, "somewhere: 3")


@pytest.mark.parametrize(
    ("file", "line"), [("/lib/a/net.py", "a/net.py:48, in forward"), ("C:\\lib\\a\\net.py", "a/net.py:48, in forward")]
)
def test_a_place_in_short(file: str, line: str):
    assert short_place(Operation(**NAMES, **NUMBERS, source_place=SourcePlace(file, 48, "forward"))) == line


def raised(source: str) -> ErrorRecord:
    from pytest_torchlens.run.errors import error_record

    try:
        exec(compile(source, "/zoo/net.py", "exec"), {})  # noqa: S102 - text of ours
    except Exception as found:  # noqa: BLE001 - any that the source raises
        return error_record(Stage.BUILD, found)
    raise AssertionError(source)


def test_an_error_inside_pytorch_came_up_where_the_model_called_it():
    place = raised("import torch\ntorch.nn.Linear(2, 2)(torch.ones(3))").source_place
    assert place == SourcePlace("/zoo/net.py", 2, "<module>")


def test_where_an_error_came_up():
    for source, place in {
        "def f():\n    1 / 0\nf()": SourcePlace("/zoo/net.py", 2, "f"),
        "\n\neval('1 +')": SourcePlace("<string>", 1),
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    [].pop()": SourcePlace("/zoo/net.py", 4, "<module>"),
    }.items():
        error = raised(source)
        assert error.source_place == place
        fields = json.loads(to_json(error))
        del fields["source_place"]  # as in a report of an older version
        assert from_json(json.dumps(fields), ErrorRecord).source_place == place


ANSWERS = (
    Answer("gate/gt", "__bool__", True, "body"),
    Answer("odd name/gt", "__bool__", False, "goes on"),
    Answer("/eq.2", "__bool__", True, "False"),
    Answer("?", "is_nonzero", False),
    Answer("/sum", "item", None, "undecided"),
)


def test_what_python_was_told():
    snapshot = Snapshot(model="M", answers=ANSWERS)
    text = to_text(snapshot)
    assert parse_snapshot(text) == snapshot
    raw = json.loads(text)
    raw["answers"] = [str(answer) for answer in ANSWERS]  # as in a baseline of an older version
    assert raw["answers"][:2] == ["gate/gt __bool__ True body", "odd name/gt __bool__ False goes on"]
    assert parse_snapshot(json.dumps(raw)) == snapshot
    (finding,) = StepAlignment(
        snapshot, Snapshot(model="M", answers=(ANSWERS[0], Answer("odd name/gt", "__bool__", True)))
    ).outside_steps()
    assert finding.operation == "odd name/gt"
    assert finding.message == "other branch taken: odd name/gt __bool__ False goes on → odd name/gt __bool__ True"
    (finding,) = StepAlignment(snapshot, Snapshot(model="M", answers=ANSWERS[:-1])).outside_steps()
    assert (finding.operation, finding.message) == ("", "other branch taken: /sum item  undecided → never asked")


@pytest.mark.parametrize("row", ["one", ["/gt", "item", 1, "body"], ["/gt", "item", None], {}])
def test_an_answer_that_is_none_is_refused(row):
    raw = json.loads(to_text(Snapshot(model="M", answers=ANSWERS)))
    raw["answers"].append(row)
    with pytest.raises(ValueError, match="answers"):
        parse_snapshot(json.dumps(raw))


def test_the_nearest_environment():
    known = {
        "avx512, 8": Environment(device="cpu", cpu_capability="AVX512", num_threads=8),
        "avx2, 2": Environment(device="cpu", cpu_capability="AVX2", num_threads=2),
        "cuda": Environment(device="cuda", cpu_capability="AVX2", num_threads=2),
    }
    assert nearest_class(Environment(device="cpu", cpu_capability="AVX512", num_threads=2), known) == "avx512, 8"
    assert nearest_class(Environment(device="cpu", cpu_capability="NEON", num_threads=2), known) == "avx2, 2"
    assert nearest_class(Environment(device="mps"), known) is None
