"""What a comparison says of an operation stands beside that operation on the model's page."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from pytest_torchlens import log_forward_pass
from pytest_torchlens.baseline.take_snapshot import take
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import Finding
from pytest_torchlens.report.drawings import row_id
from pytest_torchlens.report.layer_table import Costs
from pytest_torchlens.report.layer_table import details
from pytest_torchlens.run.environment import find_environment
from tests.report.samples import passed


class Net(nn.Module):
    """Calls modules once and again, functions inside and outside of them, and has a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(3):
            x = self.cell(x) + x
        return self.norm(x) * 2, torch.chunk(x, 2)[0] * 2


def test_each_operation_has_what_is_said_of_it():
    model, x = Net().eval(), torch.rand(3, 4)
    history = log_forward_pass(model, x)
    steps = take(history, find_environment()).steps
    findings = tuple(
        Finding(change=Change.LOCAL_CHANGE, operation=step.id, message=f"step {number}")
        for number, step in enumerate(steps)
    )
    record = history.record()
    report = replace(passed(history=record), comparison=Comparison(verdict=Change.LOCAL_CHANGE, findings=findings))
    costs = Costs.of(report)
    assert costs is not None
    layers = details(report, costs)["layers"]
    operations = [op for op in record.operations if op.layer_type != "buffer"]  # which no baseline lists
    assert len(steps) == len(operations) > 15
    for number, operation in enumerate(operations):
        assert ("baseline", f"local-change: step {number}") in layers[row_id(operation)]["facts"]
