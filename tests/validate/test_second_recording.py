"""What two recordings with slightly other inputs show, and when they show nothing."""

from __future__ import annotations

import torch

from pytest_torchlens.capture import record
from pytest_torchlens.validate.second_recording import changed_with_inputs
from tests.models import Function


def test_numbers_of_several_threads_are_not_compared():
    """Their calls are in another order each time."""

    def forward(x):
        return x * (x.sum().item() * 1.5)

    first, other = (record(Function(forward), (torch.full((3,), value),)) for value in (0.25, 0.3))
    assert [number for number, _ in changed_with_inputs(first, other)] == [1]
    for one in (first, other):
        one.threaded = True
        assert changed_with_inputs(first, other) == []
        one.threaded = False
