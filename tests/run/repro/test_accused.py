"""The operation that a comparison accuses, and of what."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import Finding
from pytest_torchlens.run.environment import find_environment
from pytest_torchlens.run.job import snapshot_of
from pytest_torchlens.run.repro.accused import Pass
from tests.run.repro.programs import history_of


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("change", "repeats"), [(Change.REGRESSION, False), (Change.UNSTABLE, True), (Change.NEWLY_UNSTABLE, True)]
)
def test_what_is_unstable_now_or_was_before_is_accused_of_other_values_each_time(
    change: Change, repeats: bool, named: bool
):
    model, x = nn.Sequential(nn.GELU()), torch.randn(4)
    history = history_of(model, x)
    snapshot = snapshot_of(history, find_environment(), None)
    operation = next(step.id for step in snapshot.steps if "gelu" in step.id)
    finding = Finding(change=change, operation=operation, message="it changes")
    comparison = Comparison(baseline="net.json", verdict=change, findings=(finding,))
    accused = Pass("net:net", history, snapshot, comparison).accused(operation if named else "")
    assert (accused.operation, accused.repeats) == (operation, repeats)
    assert "it changes" in accused.why
