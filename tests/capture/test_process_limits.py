"""Limits of the process are raised while a pass is recorded, and are as before afterwards."""

from __future__ import annotations

import gc

import pytest
import torch

from pytest_torchlens.capture import record
from tests.models import Function


@pytest.fixture(autouse=True)
def _same_threshold():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def thresholds_during(before):
    gc.set_threshold(*before)
    seen = []

    def forward(x):
        seen.append(gc.get_threshold())
        return x * 2

    record(Function(forward), (torch.ones(1),))
    return seen[0]


def test_garbage_is_collected_more_rarely_while_recording():
    assert thresholds_during((700, 10, 9)) == (20_000, 10, 9)
    assert gc.get_threshold() == (700, 10, 9)


@pytest.mark.parametrize("threshold", [(0, 10, 10), (50_000, 5, 5)])
def test_a_threshold_that_is_higher_or_collects_nothing_stays(threshold):
    assert thresholds_during(threshold) == threshold
    assert gc.get_threshold() == threshold


def test_a_threshold_that_the_model_sets_stays():
    record(Function(lambda x: x * (gc.set_threshold(123, 4, 5) or 2)), (torch.ones(1),))
    assert gc.get_threshold() == (123, 4, 5)


def test_a_threshold_is_as_before_when_the_model_raises():
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError):
        record(Function(lambda x: x / (1 // 0)), (torch.ones(1),))
    assert gc.get_threshold() == before


def test_garbage_of_the_model_is_collected_while_recording():
    class Cycle:
        alive = 0

        def __init__(self):
            self.itself = self
            Cycle.alive += 1

        def __del__(self):
            Cycle.alive -= 1

    most = []

    def forward(x):
        for _ in range(30_000):
            Cycle()
            most.append(Cycle.alive)
        return x * 2

    record(Function(forward), (torch.ones(1),))
    assert max(most) < 25_000
