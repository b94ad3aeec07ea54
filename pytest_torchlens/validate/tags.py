"""Which of many arguments turn up in a result: shown in one run, where one by one would take as many."""

from __future__ import annotations

import torch

from pytest_torchlens.validate.noise import is_dense
from pytest_torchlens.validate.trial import Trial

_MANY = 4
_AT_A_TIME = 120  # whole numbers that every numeric type tells apart


@torch.no_grad()
def landed(trial: Trial, places: list[int]) -> set[int]:
    """Return those of `places`, in lists, whose values turn up in the result, as concatenated or stacked tensors do.

    Each argument is filled with a number of its own, the rest with zeros, and the numbers in the result are read;
    then once more with the numbers passed on by one, lest one turn up by arithmetic.
    """
    places = [place for place in places if "." in trial.edges[place][0]]
    if len(places) < _MANY or trial.call.writes or not all(_can_be_filled(trial.tensors[place]) for place in places):
        return set()
    found: set[int] = set()
    for first in range(0, len(places), _AT_A_TIME):
        some = places[first : first + _AT_A_TIME]
        found |= _found(trial, places, some) & _found(trial, places, some[1:] + some[:1])
    return found


def _can_be_filled(tensor: torch.Tensor) -> bool:
    return is_dense(tensor) and tensor.dtype is not torch.bool and type(tensor) is torch.Tensor and tensor.numel() > 0


def _found(trial: Trial, places: list[int], tagged: list[int]) -> set[int]:
    tags = {place: tag for tag, place in enumerate(tagged, start=1)}
    filled = {place: _filled(trial.tensors[place], tags.get(place, 0)) for place in places}
    outcome = trial.outcome(filled)
    if outcome is None or not all(is_dense(tensor) and not tensor.is_complex() for tensor in outcome):
        return set()
    numbers = {number for tensor in outcome for number in torch.unique(tensor).tolist()}
    if not numbers <= {0, *tags.values()}:  # it does more than move
        return set()
    return {place for place, tag in tags.items() if tag in numbers}


def _filled(tensor: torch.Tensor, number: int) -> torch.Tensor:
    return torch.full((), number, dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
