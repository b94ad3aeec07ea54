"""Edits by their standard names: changes of an activation, and dicts of edits for `ModelHistory.edit`."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.edit.activations import activations
from pytest_torchlens.edit.activations import patches
from pytest_torchlens.edit.gradients import warn_of_replay
from pytest_torchlens.edit.module_state import ModuleState
from pytest_torchlens.edit.places import Part
from pytest_torchlens.edit.places import Place
from pytest_torchlens.edit.places import places_of
from pytest_torchlens.edit.recording import output_with
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay import Subgraph
from pytest_torchlens.replay.swaps import Kind
from pytest_torchlens.replay.swaps import Replacement
from pytest_torchlens.replay.swaps import noted

# -- changes: functions of the tensor ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class zero_ablate:  # noqa: N801 - used as a function
    """Puts zeros in the place of an activation: ``history.edit({"relu_1": zero_ablate()})``."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return zeros like `tensor`."""
        return torch.zeros_like(tensor)


@dataclass(frozen=True, eq=False)
class mean_ablate:  # noqa: N801
    """Puts means in the place of an activation.

    Parameters
    ----------
    axes
        The dimensions that the mean is taken over, of the tensor or of the part that an edit names: ``(0, 2, 3)`` is
        one mean for each channel.
    of
        Other activations that the mean is taken of, such as those of a whole data set, with as many dimensions; by
        default (None) the tensor itself.
    """

    axes: int | tuple[int, ...]
    of: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Check the axes."""
        axes = self.axes if isinstance(self.axes, tuple) else (self.axes,)
        if not axes or not all(map(_is_integer, axes)):
            raise TypeError(f"mean_ablate: axes: expected a dimension, or a tuple of them, got {self.axes!r:.80}")
        _check_tensor("mean_ablate: of", self.of)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the means, in the shape of `tensor`."""
        _check_has_means("mean_ablate", tensor)
        taken = tensor if self.of is None else _like("mean_ablate: of", self.of, tensor)
        axes = self.axes if isinstance(self.axes, tuple) else (self.axes,)
        outside = [axis for axis in axes if not -taken.dim() <= axis < taken.dim()]
        if outside:
            raise ValueError(f"mean_ablate: shape {list(taken.shape)} has no dimension {outside[0]}")
        if len({axis % taken.dim() for axis in axes}) < len(axes):
            raise ValueError(f"mean_ablate: axes: {self.axes} names a dimension twice")
        mean = taken.mean(axes, keepdim=True)
        return _expanded("mean_ablate: means", mean, tensor)


@dataclass(frozen=True, eq=False)
class resample:  # noqa: N801
    """Puts the activation of another example, drawn at random, in the place of each.

    Parameters
    ----------
    seed
        Seed of the drawing.
    axis
        The dimension of the examples (default 0).
    of
        Activations to draw from, in the shape of the tensor but for `axis`; by default (None) the examples of the
        tensor itself are permuted so that none keeps its own.
    """

    seed: int
    axis: int = 0
    of: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Check the parameters."""
        for name in ("seed", "axis"):
            if not _is_integer(getattr(self, name)):
                raise TypeError(f"resample: {name}: expected an integer, got {getattr(self, name)!r:.80}")
        _check_tensor("resample: of", self.of)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the drawn activations."""
        if not -tensor.dim() <= self.axis < tensor.dim():
            raise ValueError(f"resample: shape {list(tensor.shape)} has no dimension {self.axis}")
        generator = torch.Generator().manual_seed(self.seed)
        number = tensor.size(self.axis)
        if self.of is not None:
            source = _like("resample: of", self.of, tensor)
            if not source.size(self.axis):
                raise ValueError(f"resample: of: there are no examples in shape {list(source.shape)}")
            drawn = torch.randint(source.size(self.axis), (number,), generator=generator)
        elif number < 2:  # noqa: PLR2004 - two can be exchanged
            raise ValueError("resample: there is one example only: give others with of=")
        else:
            source, drawn = tensor, _derangement(number, generator)
        return source.index_select(self.axis, drawn.to(tensor.device))


def _derangement(number: int, generator: torch.Generator) -> torch.Tensor:
    """Return a permutation that is one cycle, so that nothing stays in its place (Sattolo)."""
    order = list(range(number))
    for last in range(number - 1, 0, -1):
        other = int(torch.randint(last, (), generator=generator))
        order[last], order[other] = order[other], order[last]
    return torch.tensor(order)


@dataclass(frozen=True, eq=False)
class steer:  # noqa: N801
    """Adds a vector to an activation.

    Parameters
    ----------
    vector
        What is added; it is broadcast to the tensor: ``[features]``, or ``[channels, 1, 1]`` for images.
    scale
        What it is multiplied by (default 1).
    """

    vector: torch.Tensor
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the parameters."""
        _check_tensor("steer: vector", self.vector, optional=False)
        if not isinstance(self.scale, Number | torch.Tensor):
            raise TypeError(f"steer: scale: expected a number, got {self.scale!r:.80}")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return tensor + self.scale * _expanded("steer: a vector", _like("steer: vector", self.vector, tensor), tensor)


@dataclass(frozen=True, eq=False)
class project_off:  # noqa: N801
    """Removes from an activation what lies along a direction.

    Parameters
    ----------
    direction
        The direction, of shape ``[size of axis]``; its length does not matter.
    axis
        The dimension that it is a direction of (default the last one; 1 for channels).
    """

    direction: torch.Tensor
    axis: int = -1

    def __post_init__(self) -> None:
        """Check the parameters."""
        _check_tensor("project_off: direction", self.direction, optional=False)
        if self.direction.dim() != 1 or not self.direction.count_nonzero() or not self.direction.isfinite().all():
            shape = list(self.direction.shape)
            raise ValueError(
                f"project_off: direction: expected one dimension of finite numbers, not only zeros, got shape {shape}"
            )

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor without its part along the direction."""
        if not -tensor.dim() <= self.axis < tensor.dim() or tensor.size(self.axis) != len(self.direction):
            shape = list(tensor.shape)
            raise ValueError(f"project_off: dimension {self.axis} of shape {shape} is not {len(self.direction)} long")
        _check_has_means("project_off", tensor)
        unit = _like("project_off: direction", _unit(self.direction), tensor)
        moved = tensor.movedim(self.axis, -1)
        return (moved - (moved @ unit.conj()).unsqueeze(-1) * unit).movedim(-1, self.axis)


def _unit(direction: torch.Tensor) -> torch.Tensor:
    """Return a direction with length 1, in a type that neither overflows nor loses a short one."""
    wide = direction.to(torch.promote_types(direction.dtype, torch.float64))
    wide = wide / wide.abs().max()
    return wide.div(wide.norm())


@dataclass(frozen=True, eq=False)
class splice_module:  # noqa: N801
    """Puts what a module makes of an activation in its place: a sparse autoencoder in the stream.

    The module stays as it is, also in training mode: its running statistics do not change.

    Parameters
    ----------
    module
        The module: of one tensor a tensor of the same shape.
    name
        Its name in a file of edits, which has no weights (default its class).
    """

    module: torch.nn.Module
    name: str = ""

    def __post_init__(self) -> None:
        """Check the module."""
        if not isinstance(self.module, torch.nn.Module):
            raise TypeError(f"splice_module: expected a module, got {type(self.module).__name__}")
        object.__setattr__(self, "name", self.name or type(self.module).__name__)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what the module makes of `tensor`."""
        state = ModuleState(self.module)
        try:
            result: torch.Tensor = self.module(tensor)
        finally:
            state.restore()
        return result


def _is_integer(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _check_tensor(name: str, given: object, *, optional: bool = True) -> None:
    if not isinstance(given, torch.Tensor) and not (optional and given is None):
        raise TypeError(f"{name}: expected a tensor, got {type(given).__name__}")


def _like(name: str, given: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the dtype and on the device of another."""
    if given.is_complex() and not tensor.is_complex():
        raise TypeError(f"{name}: complex numbers do not fit an activation of {tensor.dtype}: give real ones")
    return given.to(tensor)


def _check_has_means(name: str, tensor: torch.Tensor) -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(f"{name}: expected an activation of floating-point numbers, got one of {tensor.dtype}")


def _expanded(name: str, given: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    try:
        return given.expand(tensor.shape)
    except RuntimeError:
        raise ValueError(f"{name} of shape {list(given.shape)} cannot be expanded to {list(tensor.shape)}") from None


# -- edits: what goes where ----------------------------------------------------------------------------------------


def patch_from(other: ModelHistory, *keys: Any, at: Any = None) -> dict[Part, torch.Tensor]:
    """Return edits that put activations of another pass in the place of those with the same labels.

    Parameters
    ----------
    other
        The history that they are taken from.
    *keys
        As in `ModelHistory.edit`: ``"relu_1"``, ``Part("relu_1")[:, 3]``, ``("relu_1", "add_2")``.
    at
        The index of keys that have none, as in `ModelHistory.edit`.

    Raises
    ------
    LookupKeyError, ValueError, TypeError
        If a key does not fit.
    NotReplayableError
        If an activation was not saved and cannot be computed.
    """
    return patches(other, _places(other, keys, at))


def path_patch(
    history: ModelHistory,
    other: ModelHistory,
    sender: Any,
    *receivers: Any,
    frozen: Iterable[Any] = (),
    at: Any = None,
) -> dict[Part, torch.Tensor]:
    """Return edits that put into receivers what they are if a sender is as in another pass, along some paths alone.

    Two passes, as in path patching: `history` is edited with the sender's activation of `other`, while what is
    `frozen` stays as it was, and the receivers' activations of that pass are the edits.  For a single edge no second
    pass is needed: edit ``(sender, receiver)``.

    Parameters
    ----------
    history
        The pass that will be edited.
    other
        The pass that the sender's activation is taken from.
    sender, *receivers
        Keys as in `ModelHistory.edit`.
    frozen
        Keys of the activations, parts or edges that stay as in `history`: the paths through them are not taken.
    at
        The index of the sender and the receivers that have none.

    Raises
    ------
    LookupKeyError, ValueError, TypeError
        If a key does not fit, there is no receiver, or one does not depend on the sender.
    DecisionChangedError, NotReplayableError
        If `history` cannot be edited so.
    """
    if not receivers:
        raise ValueError("path_patch: expected one receiver or more, got none")
    places = _places(history, frozen)
    whole = {place.text: place for place in places if place.index is None}  # two keys may name one activation
    kept = [*whole.values(), *(place for place in places if place.index is not None)]
    edits = patch_from(other, sender, at=at) | patches(history, kept)
    _check_reached(history, _places(history, [sender], at), receivers)
    return patch_from(history.edit(edits), *receivers, at=at)


def _check_reached(history: ModelHistory, senders: list[Place], receivers: Iterable[Any]) -> None:
    """Raise if a receiver does not depend on the sender: then its edit would put there what is there."""
    graph = Subgraph(history)
    values = {id(place.value) for place in senders if place.consumer is None}
    behind = graph.descendants(values, changed={place.consumer for place in senders} - {None})[1]  # type: ignore[arg-type]
    for receiver in receivers:
        places = _places(history, [receiver])
        if not any(id(place.value) in behind for place in places):
            is_before = places[-1].value.call <= senders[0].value.call
            where = ": it comes before it" if is_before else ""
            raise ValueError(f"path_patch: the receiver {places[0].text} does not depend on {senders[0].text}{where}")


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
    places = {place.label: place for place in _whole("attribution_patch", _places(history, keys))}
    whole = Subgraph(history)
    zeros = {label: _zeros(place) for label, place in places.items()}
    swaps = {id(place.value): _adding(place, zeros[label]) for label, place in places.items()}
    warn_of_replay(history.recording, whole.descendants(swaps)[0], stacklevel=3)
    found = whole.run_with(swaps, check_decisions)
    paths = [path for path, _ in history.recording.outputs]
    with noted("the metric of attribution_patch raised this"):
        value: Any = metric(output_with(history.recording, dict(zip(paths, found.values(), strict=True))))
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise TypeError("attribution_patch: metric: expected a tensor with one number")
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
    places = _whole("logit_lens", _places(history, keys))
    (target, *more) = _whole("logit_lens: into", _places(history, [into]))
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


def grid(keys: Iterable[Any], change: Any = None, **axes: Iterable[Any]) -> dict[tuple[str, str], Any]:
    """Return edits by row and column, for a sweep and its heat map: a row for each key, a column for each place in it.

    Parameters
    ----------
    keys
        Keys of the history.
    change
        What is put there; None (default) for keys alone, which take activations of the other pass.
    **axes
        One part by name with the places along it, as in `Part`: ``position=range(5)``, ``head=[(0, 4), (1, 4)]``.

    Raises
    ------
    ValueError
        If there is not one part by name, or a row or column is there twice.
    """
    if len(axes) != 1:
        raise ValueError(f"grid: expected one part by name, such as position=range(5), got {', '.join(axes) or 'none'}")
    ((name, places),) = axes.items()
    keys, places = list(keys), list(places)
    rows, columns = [*map(str, keys)], _columns(name, places)
    for names in (rows, columns):
        if twice := next((each for each in names if names.count(each) > 1), None):
            raise ValueError(f"grid: {twice!r} is there twice: name each row and column once")
    parts = {
        (row, column): Part(key, **{name: place})
        for row, key in zip(rows, keys, strict=True)
        for column, place in zip(columns, places, strict=True)
    }
    return {where: part if change is None else {part: change} for where, part in parts.items()}


def _columns(name: str, places: list[Any]) -> list[str]:
    """Return a name for each place: ``"position 3"``, ``"head 0"`` or ``"head 0 of 4"``, ``"mask 0"``."""
    if name == "mask":
        return [f"mask {number}" for number in range(len(places))]
    plain = [each.tolist() if isinstance(each, torch.Tensor | np.ndarray) else each for each in places]
    sizes = {each[1:] for each in plain if isinstance(each, tuple)}
    return [f"{name} {_head(each, len(sizes) > 1) if isinstance(each, tuple) else each}" for each in plain]


def _head(where: tuple[Any, ...], full: bool) -> str:
    return " of ".join(map(str, where if full else where[:1]))


def _places(history: ModelHistory, keys: Iterable[Any], at: Any = None) -> list[Place]:
    if isinstance(keys, str | Mapping) or not isinstance(keys, Iterable):
        raise TypeError(f"expected keys of the history in a list, got {keys!r:.80}")
    whole = Subgraph(history)
    return [place for key in keys for place in places_of(whole, key, at)]


def _whole(name: str, places: list[Place]) -> list[Place]:
    """Return places; raise if one is a part, or what a single operation reads."""
    for place in places:
        if place.index is not None or place.consumer is not None:
            raise ValueError(f"{name}: expected keys of whole activations, got {place.text}: name {place.label!r}")
    return places
