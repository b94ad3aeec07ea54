"""Sweeps over random programs: edits that run together give what each gives alone."""

from __future__ import annotations

import random

import pytest
import torch

from pytest_torchlens.capture.leaves import walk
from tests.edit.test_edit_programs import checked_in
from tests.replay.test_random_subgraphs import recorded
from tests.replay.test_random_subgraphs import state

PER_PROGRAM, EDITS = 3, 4


def scaled(by):
    return lambda tensor: tensor * by


def summed(output):
    """Return one number of all that a program returns."""
    found = [tensor for _, tensor in walk(output) if tensor.is_floating_point() and tensor.layout is torch.strided]
    return float(sum(tensor.double().nan_to_num(0, 0, 0).cos().sum() for tensor in found))


def swept(history, edits, batch):
    """Return the values of a sweep, and how many edits ran together."""
    sweep = history.sweep(edits, metric=summed, batch=batch)
    assert [*sweep.values().isnan()] == [name in sweep.refused for name in sweep.names]
    return sweep.values(), len(edits) - sum(sweep.alone.values())


def check(program):
    """Compare some sweeps of a program; return how many edits ran together."""
    model, inputs, history = recorded(program, "all")
    before = state(model, inputs, history)
    nodes = [node for node in history.nodes if node.kind == "operation" and node.value.dtype.is_floating_point]
    together = 0
    for node in random.Random(1).sample(nodes, min(len(nodes), PER_PROGRAM)):
        edits = [{node.label: scaled(1 + number / 4)} for number in range(EDITS)]
        alone, stacked = swept(history, edits, 1), swept(history, edits, EDITS)
        torch.testing.assert_close(stacked[0], alone[0], rtol=1e-4, atol=1e-4, equal_nan=True)
        together += stacked[1]
        assert state(model, inputs, history) == before
    return together


@pytest.mark.parametrize("examples", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_random_programs(examples):
    assert sum(checked_in(examples, check)) > examples
