"""Values that Python reads: which, by whom, and from where."""

from __future__ import annotations

import torch

from pytest_torchlens.capture import record
from tests.models import Function


def asks(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 1:
        return x * x.data_ptr() * 0 + x[0].item()
    return x


def test_an_escape_has_its_value_but_an_address_is_no_value():
    escapes = record(Function(asks), (torch.tensor([2.0, 3.0]),)).escapes
    assert [(one.name, one.result) for one in escapes] == [("__bool__", True), ("data_ptr", None), ("item", 2.0)]


def test_the_first_frame_of_an_escape_is_the_line_that_reads():
    escapes = record(Function(asks), (torch.tensor([2.0, 3.0]),)).escapes
    assert {one.frames[0] for one in escapes} == {asks.__code__}
    assert [one.call for one in escapes] == [2, 2, 5]
