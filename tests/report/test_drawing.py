from __future__ import annotations

import xml.etree.ElementTree as ET

from pytest_torchlens.draw import render
from pytest_torchlens.draw.drawing import LayoutStopped
from pytest_torchlens.records import ModelReport
from pytest_torchlens.report import drawings
from pytest_torchlens.report import page_path
from pytest_torchlens.report import save_drawing
from tests.draw.samples import transformer
from tests.report.samples import passed

XLINK = "{http://www.w3.org/1999/xlink}href"


def test_the_drawing_lies_beside_the_page(tmp_path):
    report = save_drawing(passed("a/b"), tmp_path)
    assert report.graph == str(page_path(report).with_suffix(".svg"))
    assert (tmp_path / report.graph).read_bytes().startswith(b"<?xml")


def test_without_a_history_there_is_nothing_to_draw(tmp_path):
    report = ModelReport(zoo="own", name="net")
    assert save_drawing(report, tmp_path) is report
    assert list(tmp_path.iterdir()) == []


def test_without_graphviz_the_report_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", "/nowhere/dot")
    report = save_drawing(passed(), tmp_path)
    assert report.graph == ""
    assert "no drawing: /nowhere/dot does not start" in report.notes[-1]


def test_the_drawing_alone_links_to_rows_of_the_page(tmp_path):
    report = save_drawing(passed(), tmp_path)
    alone = ET.parse(tmp_path / report.graph)  # noqa: S314 - our own file
    assert "alexnet.html#row-conv2d_1_1" in {link.get(XLINK) for link in alone.iter()}


def test_where_the_layout_of_all_takes_too_long_modules_are_drawn(tmp_path, monkeypatch):
    asked = []

    def stopped_at_first(dot):
        asked.append(dot.count(" -> "))
        if len(asked) == 1:
            raise LayoutStopped("no drawing: dot was stopped after 60 s")
        return render(dot)

    monkeypatch.setattr(drawings, "render", stopped_at_first)
    report = save_drawing(passed(history=transformer(30)), tmp_path)
    assert report.graph
    assert report.notes == ()
    assert asked[1] < asked[0]
