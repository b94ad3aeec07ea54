from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.records import address_of
from pytest_torchlens.records import count_text


@pytest.mark.parametrize(("shape", "text"), [((), "scalar"), ((5,), "x5"), ((5, 5), "5x5"), ((1, 0, 3), "1x0x3")])
def test_shape(shape, text):
    assert shape_text(shape) == text


@pytest.mark.parametrize(("count", "text"), [(1, "1 tensor"), (0, "0 tensors"), (1500, "1,500 tensors")])
def test_counted(count, text):
    assert count_text(count, "tensor") == text


@pytest.mark.parametrize(("call", "address"), [("cell", "cell"), ("cell:2", "cell"), ("a:b", "a:b"), ("gone", "gone")])
def test_address_of_a_call(call, address):
    assert address_of(call, {"cell", "a:b"}) == address


def test_drawing_and_reporting_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['jinja2'] = None;"
        "import pytest_torchlens.draw, pytest_torchlens.report"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
