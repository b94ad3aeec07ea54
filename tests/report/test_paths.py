from __future__ import annotations

import pytest

from pytest_torchlens.records import ModelReport
from pytest_torchlens.report import page_path


def path(name, zoo="timm"):
    return page_path(ModelReport(zoo=zoo, name=name))


def test_plain_names_stay():
    assert str(path("resnet18.a1_in1k")) == "models/timm/resnet18.a1_in1k.html"


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../../etc/passwd", "a/b", "a\\b", "a\0b", "lone \ud800", "日本語", "x" * 500, " "),
        *("con", "nul.txt", ".hidden", "a.", "A", "hf-hub:org/model", "--lens"),
    ],
)
def test_any_name_becomes_one_safe_file_name(name):
    for made in (path(name), path("net", zoo=name)):
        assert len(made.parts) == 3
        for part in made.parts:
            assert part.isascii()
            assert part == part.lower()
            assert part[0].isalnum()
            assert len(part) < 110


def test_names_never_share_a_page():
    names = ["a/b", "a-b", "a b", "a_b", "A-B", "a\\b", "x" * 500, "x" * 501, "é", "è", "", "..", "."]
    names += [path(name).stem for name in names]
    assert len({path(name) for name in names}) == len(set(names))


def test_a_page_does_not_depend_on_the_outcome():
    assert path("net") == page_path(ModelReport(zoo="timm", name="net", nodeid="other", seconds=3.0))
