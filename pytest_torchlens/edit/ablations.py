"""Changes of an activation by their standard names: functions of the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Number

import torch

from pytest_torchlens.edit.module_state import ModuleState


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
        if taken.dim() != tensor.dim():
            raise ValueError(
                f"mean_ablate: of: expected {tensor.dim()} dimensions, as of shape {list(tensor.shape)}, got shape "
                f"{list(taken.shape)}: a mean that you have goes into an edit as a tensor"
            )
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
        if not _is_integer(self.axis):
            raise TypeError(f"project_off: axis: expected an integer, got {self.axis!r:.80}")
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
