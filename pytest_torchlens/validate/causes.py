"""Describes where a replayed tensor differs from the recorded one, and the likely cause."""

from __future__ import annotations

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.validate.noise import is_dense


def likely_cause(recording: Recording, call: Call, repeats: bool | None = None) -> str:
    """Return the likely cause in words; `repeats` says whether the call is deterministic, None if not tried."""
    if recording.silent_writes:
        return f"{recording.silent_writes[0]} changed without announcement"
    if (changed := _changed_source(recording, call)) is not None:
        path, source = changed
        known = f"the {source.kind} {source.name!r}" if source.name else "a tensor of unknown origin"
        return f"argument {path} is {known}, and holds other values now than when it was recorded"
    if call.info.draws and not call.info.opaque and is_of_torch(call.info.func):
        return "it draws random numbers, and its generator's state was not had"
    if repeats is False:
        return "the kernel is not deterministic, and differs by more than the tolerance of torch.testing"
    if call.info.opaque:
        return "its inside is out of sight: it may use what it was not given, or give something else each time"
    if repeats:
        return "it gives the same each time but not what was recorded: a wrong argument, or changed by observing"
    return "an argument was overwritten unseen, a mode of the model's was on, or the kernel is not deterministic"


def _changed_source(recording: Recording, call: Call) -> tuple[str, Source] | None:
    """Return the path and source of an argument whose source no longer holds its recorded value."""
    for path, read in edges_in(call):
        value = value_of(read)
        source = recording.sources[value.position] if value.call < 0 else None
        if source is not None and not source.written and value.digest and fingerprint(source.live) != value.fingerprint:
            return path, source
    return None


_NEIGHBOURS = 1  # elements to show on either side of the first that differs


def around_first_difference(recorded: torch.Tensor, replayed: torch.Tensor) -> str:
    """Return both values around the first element that differs; ``""`` if the tensors cannot be compared."""
    if recorded.shape != replayed.shape or not (is_dense(recorded) and is_dense(replayed)):
        return ""
    one, other = (tensor.detach().resolve_conj().resolve_neg().cpu().contiguous() for tensor in (recorded, replayed))
    places = _different(one, other).nonzero().flatten()
    if not places.numel():
        return ""
    first = int(places[0])
    place = [int(index) for index in torch.unravel_index(places[0], one.shape)]
    share = f"{places.numel():,} of {one.numel():,} elements differ"
    return f"at {place}: recorded {_elements_around(one, first)}, replayed {_elements_around(other, first)}; {share}"


def _different(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return for each element whether its bits differ."""
    size = one.element_size()
    return (one.flatten().view(torch.uint8) != other.flatten().view(torch.uint8)).view(-1, size).any(1)


def _elements_around(tensor: torch.Tensor, place: int) -> str:
    begin = max(place - _NEIGHBOURS, 0)
    elements = tensor.flatten()[begin : place + _NEIGHBOURS + 1].tolist()
    return " ".join(f"[{item}]" if at == place else str(item) for at, item in enumerate(elements, start=begin))
