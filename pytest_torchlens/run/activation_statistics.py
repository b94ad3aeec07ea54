"""Statistics of a model's activations, and the severe audit findings that they show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import torch
from torch import nn

from pytest_torchlens.audit import Subject
from pytest_torchlens.audit import audit
from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.functions import log_forward_pass
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.measure.flops import replay_calls
from pytest_torchlens.records import ActivationStatistics
from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import Severity

if TYPE_CHECKING:
    from pytest_torchlens.zoo import Inputs

_COUNT: Final = 7


def activation_statistics(model: nn.Module, inputs: Inputs, seed: int | None) -> ActivationStatistics:
    """Run a model once and return statistics of its tensors, without quantized and complex ones."""
    saving = SaveOptions(transform=_numbers)
    history = log_forward_pass(model, inputs.args, inputs.kwargs, "all", seed, save_options=saving)
    return _statistics((op.label, op.tensor_contents) for op in history if op.tensor_contents is not None)


def severe_findings(history: ModelHistory, can_replay: bool) -> tuple[AuditFinding, ...]:
    """Return the audit findings of high severity if an output of a call holds NaN or infinity.

    A replay tells where they begin; if the call cannot be replayed, the operations that made the outputs are named.
    """
    outputs = [tensor for _, tensor in walk(history.recording.output)]
    if not any(is_odd(tensor) for tensor in outputs if type(tensor) in PLAIN):  # others run code of their own
        return ()
    tensors = _replayed(history) if can_replay else _returned(history, outputs)
    with torch._C._EnableTorchFunction():
        numbers = _statistics((label, _numbers(tensor)) for label, tensor in tensors)
    found = audit(Subject(history.record(), numbers))
    return tuple(one for one in found if one.severity is Severity.HIGH)


def is_odd(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds NaN or infinity."""
    return tensor.is_floating_point() and _is_plain(tensor) and not bool(tensor.detach().isfinite().all())


def _replayed(history: ModelHistory) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the label and the tensor of each input and each operation of a replay."""
    labels: dict[int, list[str]] = defaultdict(list)
    for op in history:
        labels[op.call_id].append(op.label)
    inputs = (source.value.tensor for source in history.recording.sources if source.kind == "input")
    named = (op.label for op in history if op.is_input_layer)
    yield from ((label, tensor) for label, tensor in zip(named, inputs, strict=False) if tensor is not None)
    for replayed in replay_calls(history.recording):
        yield from zip(labels[replayed.number], replayed.outputs, strict=False)


def _returned(history: ModelHistory, outputs: list[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for (_, read), tensor in zip(history.recording.outputs, outputs, strict=True):
        if (number := value_of(read).call) >= 0 and type(tensor) in PLAIN:
            yield history.label(number), tensor


def _statistics(numbers: Iterable[tuple[str, torch.Tensor]]) -> ActivationStatistics:
    rows: list[tuple[Any, ...]] = [(label, *row.tolist()) for label, row in numbers if row.numel() == _COUNT]
    columns = list(zip(*rows, strict=True)) or [()] * (_COUNT + 1)
    names = ("operations", "mean", "std", "minimum", "maximum", "zeros", "not_finite", "nan")
    return ActivationStatistics(**dict(zip(names, columns, strict=True)))


@torch.no_grad()
def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return mean, deviation, extremes, and shares of zeros, non-finite values and NaN; empty if not `_is_plain`."""
    if not _is_plain(tensor):
        return torch.empty(0)
    values = tensor.detach()
    if values.dtype not in (torch.float32, torch.float64):
        values = values.double()
    from pytest_torchlens.recorder.statistics import exact_statistics  # loads the recorder, which few runs need

    mean, std, _, low, high, zeros, lost, nan = exact_statistics(values, correction=0).cpu()
    return torch.stack([mean, std, low, high, zeros, lost / values.numel(), nan / values.numel()])


def _is_plain(tensor: torch.Tensor) -> bool:
    kind_is_plain = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested or tensor.is_meta)
    return kind_is_plain and not tensor.is_complex() and tensor.numel() > 0
