"""What the recorder itself computes about a custom autograd function is not taken for the model's doing."""

from __future__ import annotations

import torch

from pytest_torchlens.validate import validate
from tests.models import Function


class ScalesTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.new(x)


def test_a_result_that_is_not_contiguous_is_looked_at_in_silence():
    found = validate(
        Function(lambda x: ScalesTheGradient.apply((x * 2).transpose(0, 1)).float() + 1), (torch.ones(3, 2),)
    )
    assert found, found.verdict
    assert "new" in [operation.layer_type for operation in found.history.record().operations]
