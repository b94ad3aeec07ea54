"""State is read from fields of the records, whatever the notes beside it say."""

from __future__ import annotations

import pytest

from pytest_torchlens.baseline.wording import summary
from pytest_torchlens.plugin.session import fits_no_model
from pytest_torchlens.plugin.session import missing_drawings
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import PartVerdict
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
    assert summary([("z:m", worded)])[-1].startswith("1 waits to be accepted")


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
    from pytest_torchlens.plugin.autotrace import section

    part = PartVerdict(name="completeness", status=Status.PASSED, unchecked=("a constant",), notes=("a note",))
    call = TracedCall(model="M", verdict=Verdict(status=Status.PASSED, parts=(part,)))
    assert section(TracedTest(found=(call,))) == "M: not checked: a constant"


def test_an_older_report_has_the_defaults():
    report = ModelReport(zoo="z", name="m", comparison=Comparison(verdict=Change.NEW))
    text = to_json(report)
    for field in ("stored", "untimed", "unsaved", "graph_unfit", "graph_failed"):
        text = text.replace(f'"{field}":"",', "").replace(f',"{field}":""', "").replace(f'"{field}": "", ', "")
        assert f'"{field}"' not in text
    assert from_json(text, ModelReport) == report
