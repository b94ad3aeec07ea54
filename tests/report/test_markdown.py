from __future__ import annotations

from dataclasses import replace

from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage
from pytest_torchlens.report import github_annotations
from pytest_torchlens.report import markdown
from tests.report.samples import audited
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted
from tests.report.samples import run


def test_counts_stand_first_then_failures_then_a_table():
    lines = markdown(run(passed(), refuted(), raised())).splitlines()
    assert lines[0] == "### pytest-torchlens: ❌ 2 failed, ✅ 1 passed"
    assert lines[2].startswith("- ❌ **torchvision:swapped** in replay at conv2d&#95;2&#95;4: replay gave other values")
    assert any(line.startswith("  - what to do: set model.counter = 0") for line in lines)
    rows = [line for line in lines if line.startswith("| torchvision")]
    assert [row.split(" | ")[0] for row in rows] == [
        "| torchvision:swapped",
        "| torchvision:broken",
        "| torchvision:alexnet",
    ]
    assert rows[-1] == "| torchvision:alexnet | ✅ passed | 61.1M | 24 | 4.8 MB | 12.3 | 24 | 24 |"
    assert "torch 2.14.1" in lines[-1]


def test_findings_are_counted_and_the_gravest_told():
    text = markdown(run(audited(), passed()))
    place = "at 1 place: conv2d&#95;2&#95;4, /zoo/net.py:48, in forward, 2 %"
    assert f"- ⚠️ **torchvision:audited**: An activation holds NaN, {place}\n" in text
    assert "\nAudit findings: 1 high, 1 medium; the models' pages have them.\n" in text
    brief = markdown(run(audited().brief()))
    assert f"- ⚠️ **torchvision:audited**: An activation holds NaN, {place}\n" in brief
    assert "Audit" not in markdown(run(passed()))


def test_an_empty_run():
    assert markdown(run()).startswith("### pytest-torchlens: no model ran\n")


def test_names_make_no_markdown_and_no_html():
    hostile = "</td>| a\n# b <script>alert(1)</script> ![x](http://x) `c` @all $x$ &lt;"
    text = markdown(run(replace(refuted(hostile), zoo=hostile)))
    assert not set("<`![]@$") & set(text.replace("<sub>", "").replace("</sub>", ""))
    (row,) = (line for line in text.splitlines() if line.endswith("| 24 | 24 |"))
    assert row.count("|") == 9


def test_a_summary_stays_below_githubs_limit():
    long = [
        replace(raised(f"model{i}"), error=ErrorRecord(stage=Stage.BUILD, type="E", message="<" * 5000))
        for i in range(2000)
    ]
    text = markdown(run(*long))
    assert len(text.encode()) < 1_000_000
    assert "and 1,950 more failed models" in text
    assert "and 1,700 more models" in text


def test_annotations_name_file_line_and_reason(tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "net.py").write_text("", encoding="utf-8")
    (line,) = github_annotations([passed(), refuted()], tmp_path)
    head, _, text = line.removeprefix("::error ").partition("::")
    assert head == "file=zoo/net.py,line=48,title=lens%3A torchvision%3Aswapped failed in replay at conv2d_2_4"
    assert text.startswith(
        "replay gave other values: 3 of 139,968 elements differ, by at most 1.2e-3%0Aconv2d_2_4, zoo/net.py:48"
    )


def test_code_outside_the_repository_is_told_in_words_alone(tmp_path):
    error = ErrorRecord(
        stage=Stage.BUILD, type="E", message="50 %\n::error::x", traceback='  File "/etc/hosts", line 1, in f\n'
    )
    report = replace(raised(), error=error, nodeid="zoo.yaml::net", outcome=Outcome.FAILED)
    (line,) = github_annotations([report], tmp_path)
    assert line.startswith("::error file=zoo.yaml,title=lens")
    assert "50 %25%0A::error::x%0A/etc/hosts:1" in line
    assert "\n" not in line


def test_ten_annotations_at_most(tmp_path):
    assert len(list(github_annotations([raised(f"m{i}") for i in range(30)], tmp_path))) == 10
