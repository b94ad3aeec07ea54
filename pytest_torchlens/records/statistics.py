"""Activations in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ActivationStatistics:
    """What the tensors of a forward pass were like.

    The lists have one entry for each tensor of real, finite or infinite, numbers that has elements, in execution
    order.  Means, spreads and extremes are of the finite elements, ``nan`` where there is none.
    """

    operations: tuple[str, ...] = ()
    """Label of each tensor's operation."""
    mean: tuple[float, ...] = ()
    """Mean of each."""
    std: tuple[float, ...] = ()
    """Standard deviation of each."""
    minimum: tuple[float, ...] = ()
    """Smallest element of each."""
    maximum: tuple[float, ...] = ()
    """Largest element of each."""
    zeros: tuple[float, ...] = ()
    """Share of the elements of each that are zero, from 0 to 1."""
    not_finite: tuple[float, ...] = ()
    """Share of the elements of each that are infinite or no number, from 0 to 1."""
    nan: tuple[float, ...] = ()
    """Share of the elements of each that are no number, from 0 to 1; empty where it was not asked for."""
