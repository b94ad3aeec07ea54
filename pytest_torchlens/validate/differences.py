"""Where two tensors differ, in words."""

from __future__ import annotations

import torch

from pytest_torchlens.validate.noise import is_dense

_BESIDE = 1  # elements shown on either side of the first that differs


def around_first_difference(recorded: torch.Tensor, replayed: torch.Tensor) -> str:
    """Return both values around the first element that differs, ``""`` where that cannot be told."""
    if recorded.shape != replayed.shape or not (is_dense(recorded) and is_dense(replayed)):
        return ""
    one, other = (tensor.detach().resolve_conj().resolve_neg().cpu().contiguous() for tensor in (recorded, replayed))
    places = _different(one, other).nonzero().flatten()
    if not places.numel():
        return ""
    first = int(places[0])
    place = [int(index) for index in torch.unravel_index(places[0], one.shape)]
    share = f"{places.numel():,} of {one.numel():,} elements differ"
    return f"at {place}: recorded {_shown(one, first)}, replayed {_shown(other, first)}; {share}"


def _different(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return for each element whether its bits differ."""
    size = one.element_size()
    return (one.flatten().view(torch.uint8) != other.flatten().view(torch.uint8)).view(-1, size).any(1)


def _shown(tensor: torch.Tensor, place: int) -> str:
    begin = max(place - _BESIDE, 0)
    elements = tensor.flatten()[begin : place + _BESIDE + 1].tolist()
    return " ".join(f"[{item}]" if at == place else str(item) for at, item in enumerate(elements, start=begin))
