from __future__ import annotations

from dataclasses import replace

from pytest_torchlens.records import ModelReport
from pytest_torchlens.report import verbose_text
from tests.report.samples import audited
from tests.report.samples import measured
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted


def test_once_verbose_tells_of_parts_time_and_cost():
    name, *lines = verbose_text(measured(), 1).splitlines()
    told = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert name == "torchvision:measured"
    assert told["inputs"] == "x: float32[1, 3, 224, 224]"
    assert told["perturbation"] == "passed: 24 edges, 3 exempt"
    assert told["completeness"] == "not-run: needs torch 2.6 or later"
    assert told["time"] == "12.3 ms plain, median of 5; 20.0 ms recorded; 0.8 s validated; 1.5 s in all"
    assert told["cost"] == "4.0M FLOPs, peak memory 28.6 MB computed, 29.6 MB measured"
    assert "slowest" not in told


def test_twice_verbose_names_the_slowest_and_the_largest():
    lines = verbose_text(measured(), 2).splitlines()
    slowest = [line.split()[1] for line in lines if line.startswith("  slowest")]
    assert slowest == ["output_1_23:", "linear_3_22:", "relu_7_21:", "linear_2_20:", "dropout_2_19:"]
    largest = [line.split()[1] for line in lines if line.startswith("  largest")]
    assert largest[:2] == ["conv2d_1_1:", "relu_1_2:"]
    assert any(line.startswith("  kinds") and "linear 21% (3 calls)" in line for line in lines)


def test_findings_are_told():
    text = verbose_text(audited(), 1)
    assert "  audit high   An activation holds NaN, at 1 place: conv2d_2_4, /zoo/net.py:48, in forward, 2 %\n" in text
    assert "  audit medium A module is never used, at 23 places: aux, /zoo/net.py:12, in forward, 2 param" in text


def test_what_failed_and_what_is_not_known():
    assert "  replay       failed: 24 activations, 14 failed" in verbose_text(refuted(), 1)
    assert verbose_text(raised(), 2).splitlines() == ["torchvision:broken"]
    assert verbose_text(ModelReport(zoo="own", name="net"), 2) == "own:net"


def test_ascii_and_no_control_characters():
    text = verbose_text(replace(passed("naïve\x1b"), notes=("日本\x07",)), 2, ascii=True)
    assert text.isascii()
    assert all(char.isprintable() or char == "\n" for char in text)
