"""What activations say of the output: estimates from gradients, and the logits of each layer."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import torch

from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.edit.activations import activations
from pytest_torchlens.edit.gradients import warn_of_replay
from pytest_torchlens.edit.places import Place
from pytest_torchlens.edit.places import places_in
from pytest_torchlens.edit.places import whole_places
from pytest_torchlens.edit.recording import output_with
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay import Subgraph
from pytest_torchlens.replay.swaps import Kind
from pytest_torchlens.replay.swaps import Replacement
from pytest_torchlens.replay.swaps import noted


def attribution_patch(
    history: ModelHistory,
    other: ModelHistory,
    keys: Iterable[Any],
    metric: Callable[[Any], torch.Tensor],
    *,
    check_decisions: bool = True,
) -> dict[str, torch.Tensor]:
    """Return estimates of what patching each element from another pass would change: gradient times difference.

    One backward pass serves all keys.

    Parameters
    ----------
    history
        The pass that would be edited, recorded with gradients on.
    other
        The pass whose activations would be put there.
    keys
        Keys of whole activations; the estimate of a part is that part of the result.
    metric
        A function of the model's output that returns one number.
    check_decisions
        As in `ModelHistory.edit`.

    Returns
    -------
    dict
        By label, in the shape of the activation: its sum estimates how the metric changes if all of it is patched.

    Raises
    ------
    LookupKeyError, ValueError, TypeError
        If a key or the metric does not fit, or the other pass has another shape or number of passes there.
    DecisionChangedError
        See `check_decisions`.
    NotReplayableError
        If no gradients flow from the metric to the keys, or an operation cannot be run again.
    """
    places = {place.label: place for place in whole_places("attribution_patch", places_in(history, keys))}
    whole = Subgraph(history)
    zeros = {label: _zeros(place) for label, place in places.items()}
    swaps = {id(place.value): _adding(place, zeros[label]) for label, place in places.items()}
    warn_of_replay(history.recording, whole.descendants(swaps)[0], stacklevel=3)
    found = whole.run_with(swaps, check_decisions)
    paths = [path for path, _ in history.recording.outputs]
    with noted("the metric of attribution_patch raised this"):
        value: Any = metric(output_with(history.recording, dict(zip(paths, found.values(), strict=True))))
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        got = f"one of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(f"attribution_patch: metric: expected a tensor with one number, got {got}")
    if not value.requires_grad:
        raise NotReplayableError(f"attribution_patch: {_why_no_gradients(history)}")
    gradients: list[torch.Tensor | None] = [*torch.autograd.grad(value.sum(), [*zeros.values()], allow_unused=True)]
    if all(gradient is None for gradient in gradients):
        raise NotReplayableError("attribution_patch: the metric depends on none of the keys: is it one of the output?")
    mine, theirs = activations(history, places.values()), activations(other, places.values())
    return {
        label: torch.zeros_like(zeros[label]) if gradient is None else gradient * (theirs[label] - mine[label])
        for label, gradient in zip(zeros, gradients, strict=True)
    }


def _why_no_gradients(history: ModelHistory) -> str:
    if any(tensor.requires_grad for tensor in tensors(history.recording.output)):
        return (
            "no gradients flow from the metric to the keys: it detaches them, no key is before the output that it "
            "reads, or a custom autograd function is on the way, which a replay has no gradients of"
        )
    return "no gradients flow: record the pass with gradients on"


def _zeros(place: Place) -> torch.Tensor:
    value = place.value
    if not value.dtype.is_floating_point:
        raise TypeError(f"attribution_patch: {place.label} is {value.dtype}, which has no gradients")
    return torch.zeros(tuple(value.shape), dtype=value.dtype, device=value.device, requires_grad=True)


def _adding(place: Place, zeros: torch.Tensor) -> Replacement:
    return Replacement(f"attribution_patch: {place.label}", Kind.of(place.value), lambda tensor: tensor + zeros)


def logit_lens(
    history: ModelHistory, keys: Iterable[Any], into: Any, *, check_decisions: bool = True
) -> dict[str, Any]:
    """Return what the model would return if its last layers read an earlier activation: by label of the activation.

    Parameters
    ----------
    history
        The pass.
    keys
        Keys of the whole activations to look at: the residual stream after each block.
    into
        Key of the whole activation that they take the place of, of the same shape: the stream before the last norm.
    check_decisions
        As in `ModelHistory.edit`.

    Raises
    ------
    LookupKeyError, ValueError, TypeError
        If a key does not fit, or an activation has another shape or dtype than `into`.
    DecisionChangedError
        See `check_decisions`.
    NotReplayableError
        If an operation cannot be run again.
    """
    places = whole_places("logit_lens", places_in(history, keys))
    (target, *more) = whole_places("logit_lens: into", places_in(history, [into]))
    if more:
        raise ValueError(f"logit_lens: into: {into!r} has several passes: name one, such as {target.label!r}")
    values = activations(history, places)
    whole = Subgraph(history)
    paths = [path for path, _ in history.recording.outputs]

    def seen(place: Place) -> Any:
        what = f"logit_lens: {place.label} in the place of {target.label}"
        swap = Replacement(what, Kind.of(target.value), values[place.label])
        found = whole.run_with({id(target.value): swap}, check_decisions)
        return output_with(history.recording, dict(zip(paths, found.values(), strict=True)))

    return {place.label: seen(place) for place in places}
