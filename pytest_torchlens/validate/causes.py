"""Describes where a replayed tensor differs from the recorded one, and the likely cause."""

from __future__ import annotations

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.calls import Circumstances
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.validate.noise import is_dense

ARGUMENT = "argument"
"""Begins a cause that is about the value of an argument."""


def likely_cause(
    recording: Recording, number: int, arguments: list[torch.Tensor] | None = None, repeats: bool | None = None
) -> str:
    """Return why the replay of call `number` differs from the record, if something shows it; else ``""``.

    Parameters
    ----------
    recording
        The recording.
    number
        The call.
    arguments
        The replayed tensor arguments in the order of `edges_in`, as the call got them; None if they were overwritten.
    repeats
        Whether the call is deterministic; None if it was not tried.
    """
    call = recording.calls[number]
    if silent := _silently_written(recording, call):
        return f"{silent} changed, but no recorded operation wrote to it"
    if (changed := _changed_source(recording, call)) is not None:
        path, source = changed
        known = f"the {source.kind} {source.name!r}" if source.name else "a tensor of unknown origin"
        return f"{ARGUMENT} {path} is {known}, and holds other values now than when it was recorded"
    if call.info.draws and call.random is None and not call.info.opaque and is_of_torch(call.info.func):
        return "it draws random numbers, and its generator's state was not had"
    if repeats is False:
        return "the kernel is not deterministic, and differs by more than the tolerance of torch.testing"
    known_circumstances = recording.circumstances.get(number)
    if known_circumstances is None or arguments is None:
        return ""
    return _by_circumstances(call, known_circumstances, arguments)


def _by_circumstances(call: Call, circumstances: Circumstances, arguments: list[torch.Tensor]) -> str:
    """Return the cause that the fingerprints of the arguments show.

    If they are those of the replay, nothing else differs but what the replay leaves out: the modes.
    """
    paths = [path for path, _ in edges_in(call)]
    for path, tensor in zip(paths, arguments, strict=True):
        if fingerprint(tensor) != circumstances.arguments.get(path):
            return f"{ARGUMENT} {path} was overwritten before it was read, and no recorded operation did it"
    if circumstances.modes:
        names = ", ".join(dict.fromkeys(circumstances.modes))
        return f"it ran under the mode {names}, and gives something else without it"
    return "it gave something else for the same tensors: it depends on what is not among its recorded arguments"


def _silently_written(recording: Recording, call: Call) -> str:
    """Return the description of an argument that changed although no recorded call wrote to it; ``""`` if none did."""
    values = (value_of(read) for _, read in edges_in(call))
    sources = (recording.sources[value.position] for value in values if value.call < 0)
    return next((source.label for source in sources if source.name and source.label in recording.silent_writes), "")


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
