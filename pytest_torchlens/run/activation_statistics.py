"""Statistics of a model's activations, and the severe audit findings that they show."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import torch
from torch import nn

from pytest_torchlens.audit import Subject
from pytest_torchlens.audit import audit
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.storage import is_fake
from pytest_torchlens.capture.storage import is_freed
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.functions import log_forward_pass
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import ActivationStatistics
from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import Severity
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.calls import replay_calls
from pytest_torchlens.run.activation_pictures import as_text
from pytest_torchlens.run.activation_pictures import picture_of

if TYPE_CHECKING:
    from pytest_torchlens.zoo import Inputs

_COUNT: Final = 7

_BINS: Final = 20
"""Steps of a histogram."""


def activation_statistics(
    model: nn.Module, inputs: Inputs, seed: int | None, pictures: bool = False
) -> ActivationStatistics:
    """Run a model once and return statistics of its tensors, and pictures, without quantized and complex ones."""
    saving = SaveOptions(transform=partial(_numbers, picture=pictures))
    history = log_forward_pass(model, inputs.args, inputs.kwargs, "all", seed, save_options=saving)
    return _statistics((op.label, op.tensor_contents) for op in history if op.tensor_contents is not None)


class ValueStatistics:
    """Listens to a replay, and takes the statistics of each value when it is made; with `pictures`, a picture too."""

    def __init__(self, pictures: bool = False) -> None:
        self._numbers: dict[int, torch.Tensor] = {}
        self._numbers_of = partial(_numbers, picture=pictures)

    def before(self, player: Player, call: Call) -> None:
        """Do nothing."""

    def after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        """Take the statistics of the outputs of a call."""
        for value, output in zip(call.outputs, outputs, strict=True):
            self._numbers[id(value)] = self._numbers_of(output)

    def of(self, history: ModelHistory) -> ActivationStatistics:
        """Return what `activation_statistics` returns, for the history whose recording was replayed."""
        inputs = {id(node.value): node.value.tensor for node in history.nodes if node.kind == "input"}
        numbers = self._numbers | {key: self._numbers_of(one) for key, one in inputs.items() if one is not None}
        layers = (node for node in history.nodes if node.layer_total_num >= 0 and id(node.value) in numbers)
        return _statistics((node.label, numbers[id(node.value)]) for node in layers)


def severe_findings(history: ModelHistory, can_replay: bool) -> tuple[AuditFinding, ...]:
    """Return the audit findings of high severity that values show, if an output of a call holds NaN or infinity.

    A replay shows where they begin; if the call cannot be replayed, the operations that made the outputs are named.
    """
    outputs = [tensor for _, tensor in walk(history.recording.output)]
    if not any(map(is_odd, outputs)):
        return ()
    results = _replayed(history) if can_replay else _returned(history, outputs)
    numbers = ((label, _numbers(tensor)) for label, tensor in itertools.chain(_sources(history), results))
    # a replay needs the dispatch of PyTorch's own classes; a call with classes of the test is not replayed
    with torch._C._EnableTorchFunction() if can_replay else contextlib.nullcontext():
        statistics = _statistics(numbers)
    record = history.record()
    without_values = {one.rule for one in audit(Subject(record))}
    found = audit(Subject(record, statistics))
    return tuple(one for one in found if one.severity is Severity.HIGH and one.rule not in without_values)


def is_odd(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds NaN or infinity."""
    if not (tensor.is_floating_point() and _is_plain(tensor)):
        return False
    try:
        values = tensor.detach().float() if tensor.itemsize == 1 else tensor.detach()
    except NotImplementedError:  # a dtype that can only be stored
        return False
    return not bool(values.isfinite().all())


def _sources(history: ModelHistory) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the label and the tensor of each input, buffer and constant: what they hold does not begin in the call."""
    for node in history.nodes:
        if node.source is not None and node.value.tensor is not None:
            yield node.label, node.value.tensor


def _replayed(history: ModelHistory) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the label and the tensor of each operation of a replay."""
    labels: dict[int, list[str]] = defaultdict(list)
    for op in history:
        labels[op.call_id].append(op.label)
    for replayed in replay_calls(history.recording):
        yield from zip(labels[replayed.number], replayed.outputs, strict=False)


def _returned(history: ModelHistory, outputs: list[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the label of the operation that made each output, and the output."""
    for (_, read), tensor in zip(history.recording.outputs, outputs, strict=True):
        if (number := value_of(read).call) >= 0:
            yield history.label(number), tensor


def _statistics(numbers: Iterable[tuple[str, torch.Tensor]]) -> ActivationStatistics:
    rows: list[tuple[Any, ...]] = [_row(label, row.tolist()) for label, row in numbers if row.numel()]
    columns = list(zip(*rows, strict=True)) or [()] * (_COUNT + 3)
    names = ("operations", "mean", "std", "minimum", "maximum", "zeros", "not_finite", "nan", "histograms", "pictures")
    found = ActivationStatistics(**dict(zip(names, columns, strict=True)))
    return found if any(found.pictures) else replace(found, pictures=())


def _row(label: str, numbers: list[float]) -> tuple[Any, ...]:
    histogram, picture = numbers[_COUNT : _COUNT + _BINS], numbers[_COUNT + _BINS :]
    return label, *numbers[:_COUNT], tuple(map(int, histogram)), as_text(picture)


@torch.no_grad()
def _numbers(tensor: torch.Tensor, picture: bool = False) -> torch.Tensor:
    """Return mean, deviation, extremes, shares of zeros, non-finite values and NaN, the numbers of a histogram.

    With `picture` that follows, too.  A tensor that is not `_is_plain` has none.
    """
    if not _is_plain(tensor):
        return torch.empty(0)
    values = tensor.detach()
    if values.dtype not in (torch.float32, torch.float64):
        try:
            values = values.double()
        except NotImplementedError:  # a dtype that can only be stored
            return torch.empty(0)
    from pytest_torchlens.recorder.statistics import exact_statistics  # loads the recorder, which few runs need

    mean, std, _, low, high, zeros, lost, nan = exact_statistics(values, correction=0).cpu()
    shares = torch.stack([mean, std, low, high, zeros, lost / values.numel(), nan / values.numel()])
    parts = [shares, _histogram(values, float(low), float(high))]
    parts += [picture_of(values, float(low), float(high))] if picture else []
    return torch.cat([part.to(shares) for part in parts])


def _histogram(values: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return the number of finite elements in each of `_BINS` equal steps."""
    # Not `torch.histc`, which is not deterministic on CUDA.
    finite = values[values.isfinite()]
    width = (high - low) / _BINS
    if not 0 < width < float("inf"):
        return torch.tensor([finite.numel()] + [0] * (_BINS - 1))
    steps = finite.sub(low).div_(width).clamp_(0, _BINS - 1).to(torch.uint8)
    return torch.bincount(steps, minlength=_BINS).cpu()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has real numbers that can be read: to read freed memory would end the process."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        return False
    return not (tensor.is_complex() or is_fake(tensor) or is_freed(tensor)) and tensor.numel() > 0
