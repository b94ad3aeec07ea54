"""Activation statistics of a model, by one more recorded pass that keeps seven numbers of each tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import torch
from torch import nn

from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.functions import log_forward_pass
from pytest_torchlens.records import ActivationStatistics

if TYPE_CHECKING:
    from pytest_torchlens.zoo import Inputs

_COUNT: Final = 7


def activation_statistics(model: nn.Module, inputs: Inputs, seed: int | None) -> ActivationStatistics:
    """Run a model once and return what its tensors were like; those of quantized or complex numbers are left out."""
    saving = SaveOptions(transform=_numbers)
    history = log_forward_pass(model, inputs.args, inputs.kwargs, "all", seed, save_options=saving)
    rows = [
        (op.label, *op.tensor_contents.tolist())
        for op in history
        if op.tensor_contents is not None and op.tensor_contents.numel() == _COUNT
    ]
    columns = list(zip(*rows, strict=True)) or [()] * (_COUNT + 1)
    names = ("operations", "mean", "std", "minimum", "maximum", "zeros", "not_finite", "nan")
    return ActivationStatistics(**dict(zip(names, columns, strict=True)))


@torch.no_grad()
def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return mean, deviation, extremes, shares of zeros, of what is not finite, and of NaN; of others nothing."""
    if not _is_plain(tensor):
        return torch.empty(0)
    values = tensor.detach().flatten()
    if values.dtype not in (torch.float32, torch.float64):
        values = values.double()
    is_finite = values.isfinite()
    lost = 1 - is_finite.count_nonzero() / len(values)
    nan = values.isnan().count_nonzero() / len(values) if lost else lost
    finite = values[is_finite] if lost else values
    if not len(finite):
        finite = values.new_full((1,), float("nan"))
    std, mean = torch.std_mean(finite, correction=0)
    zeros = 1 - values.count_nonzero() / len(values)
    return torch.stack([number.double().cpu() for number in (mean, std, *finite.aminmax(), zeros, lost, nan)])


def _is_plain(tensor: torch.Tensor) -> bool:
    kind_is_plain = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested or tensor.is_meta)
    return kind_is_plain and not tensor.is_complex() and tensor.numel() > 0
