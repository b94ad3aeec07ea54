from __future__ import annotations

from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from tests.report.samples import measured


def test_a_brief_report_keeps_what_a_table_shows_and_no_list():
    whole = measured()
    brief = whole.brief()
    assert brief.history.num_operations == whole.history.num_operations
    assert brief.history.operations == brief.history.modules == brief.history.layer_list == ()
    assert brief.measurements.modules[0].flops == whole.measurements.modules[0].flops
    assert brief.measurements.peak_bytes == whole.measurements.peak_bytes
    assert brief.measurements.live_bytes == brief.measurements.operation_seconds == ()
    assert brief.verdict == whole.verdict
    assert brief.is_brief
    assert not whole.is_brief
    assert len(to_json(brief)) < 4_000 < len(to_json(whole))
    assert from_json(to_json(brief), ModelReport) == brief


def test_a_report_of_nothing_is_brief():
    report = ModelReport(zoo="z", name="n")
    assert report.brief() == report
