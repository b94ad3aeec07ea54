"""What is recorded where NumPy writes to a tensor's memory; the verdicts on the same programs are `test_arrays`'s."""

from __future__ import annotations

import numpy as np
import torch

from pytest_torchlens.capture import record
from tests.capture.programs import graph_of
from tests.capture.programs import trace
from tests.capture.test_arrays import PROGRAMS
from tests.models import Function


@PROGRAMS.parametrize()
def test_graph(program, mode):
    _, history = trace(program, mode)
    assert graph_of(history) == program.graph


def names(forward) -> list[str]:
    with torch.no_grad():
        return [call.info.name for call in record(Function(forward), (torch.ones(4),)).calls]


def written_then_dropped(x):
    y = x * 2
    array = y.numpy()
    array[0] = 7
    del array
    return y + 1


def written_by_both(x):
    y = x * 2
    array = y.numpy()
    array[0] = 7
    y.add_(1)
    return y + array.sum().item() * 0


def copied(x):
    y = x * 2
    array = np.array(y.numpy(), copy=True)
    array[0] = 7
    return y + 1


def test_a_write_through_an_array_is_one_call_and_others_are_none():
    assert names(written_then_dropped) == ["mul", "copy_", "add"]
    assert names(written_by_both) == ["mul", "copy_", "add_", "add"]
    assert names(copied) == ["mul", "add"]
