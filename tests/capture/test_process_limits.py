"""Limits of the process are raised while a pass is recorded, and are as before afterwards."""

from __future__ import annotations

import gc

import pytest
import torch

from pytest_torchlens.capture import record
from pytest_torchlens.capture.process_limits import RaisedLimit
from pytest_torchlens.validate import validate
from tests.models import Function

NOTED = []
"""What models have noted; a validation puts back what they reach, but for globals."""


def note(fact):
    NOTED.append(fact)


@pytest.fixture(autouse=True)
def _same_threshold():
    before = gc.get_threshold()
    NOTED.clear()
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
    youngest, *older = thresholds_during((700, 10, 9))
    assert 20_000 <= youngest <= 21_000  # what was made before counts too
    assert older == [10, 9]
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


@pytest.mark.parametrize("run", [record, validate])
def test_garbage_of_the_model_is_collected_in_each_run(run):
    class Cycle:
        alive = 0

        def __init__(self):
            self.itself = self
            Cycle.alive += 1

        def __del__(self):
            Cycle.alive -= 1

    def forward(x):
        numbers = []
        for _ in range(30_000):
            Cycle()
            numbers.append(Cycle.alive)
        note(max(numbers))
        return x * 2

    run(Function(forward), (torch.ones(1),))
    assert 0 < max(NOTED) < 25_000


@pytest.mark.parametrize("on", [True, False])
def test_validation_leaves_the_collector_as_the_model_does(on):
    def forward(x):
        note(gc.isenabled())
        (gc.enable if on else gc.disable)()
        return x * 2

    try:
        validate(Function(forward), (torch.ones(1),))
        assert (NOTED[0], {*NOTED[1:]}, gc.isenabled()) == (True, {on}, on)
    finally:
        gc.enable()


def test_a_limit_stays_put_back_when_the_thread_that_raised_it_is_done():
    state = [1]
    limit = RaisedLimit(lambda: state[0], lambda value: state.__setitem__(0, value), lambda value: value + 1)
    raised, put_back = limit.raised(), limit.put_back()
    raised.__enter__()
    assert state == [2]
    put_back.__enter__()
    assert state == [1]
    raised.__exit__(None, None, None)
    put_back.__exit__(None, None, None)
    assert state == [1]
