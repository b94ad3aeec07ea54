"""PyTorch's own operator database: each operator in a one-line module, validated."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db

from pytest_torchlens.validate import validate

DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.float64, torch.bfloat16, torch.float16)

# name: why it cannot be run here, or makes no tensor
NOT_RUN = {
    "torch._scaled_mm": "float8 alone, no CPU kernel for its samples",
    "torch._scaled_mm_v2": "float8 alone, no CPU kernel for its samples",
    "torch.ops.aten._flash_attention_forward": "CUDA alone",
    "torch.ops.aten._efficient_attention_forward": "CUDA alone",
    "nn.functional.batch_norm.without_cudnn": "CUDA alone",
    "jiterator_unary": "CUDA alone",
    "jiterator_binary": "CUDA alone",
    "jiterator_4inputs_with_extra_args": "CUDA alone",
    "jiterator_binary_return_by_ref": "CUDA alone",
    "jiterator_2inputs_2outputs": "CUDA alone",
}
NO_TENSOR = {"item", "allclose", "broadcast_shapes", "equal"}


class OneCall(nn.Module):
    def __init__(self, op, args, kwargs):
        super().__init__()
        self.op = op
        self.rest = args
        self.named = kwargs

    def forward(self, x):
        return self.op(x, *self.rest, **self.named)


def name_of(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPERATORS = {name_of(op): op for op in op_db}


def failures_of(name):
    """Validate the operator's first sample; return the failures, as text."""
    op = OPERATORS[name]
    dtype = next(dtype for dtype in DTYPES if dtype in op.supported_dtypes("cpu"))
    torch.manual_seed(0)
    sample = next(iter(op.sample_inputs("cpu", dtype, requires_grad=False)))
    validation = validate(OneCall(op.op, sample.args, sample.kwargs), (sample.input,))
    if not validation.history.recording.calls and name not in NO_TENSOR:
        return [f"{name}: nothing was recorded"]
    parts = validation.verdict.parts
    return [f"{name}: {part.name}: {failure.message}" for part in parts for failure in part.failures]


def runnable():
    return [name for name in OPERATORS if name not in NOT_RUN]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(runnable())[3::7])
def test_a_sample_of_operators(name):
    assert failures_of(name) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_operator(capsys):
    failed = [text for name in runnable() for text in failures_of(name)]
    with capsys.disabled():
        print(f"\n{len(runnable())} of {len(OPERATORS)} operators validated, {len(failed)} failures")  # noqa: T201
    assert failed == []
    assert len(runnable()) > 600
