"""Numbers as colours, by tables: a frame costs a look-up a pixel."""

from __future__ import annotations

from typing import Any

import numpy as np

Colours = np.ndarray[Any, np.dtype[np.uint8]]

_LIGHTNESS = [(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)]
_SIGNED = [(5, 48, 97), (67, 147, 195), (247, 247, 247), (214, 96, 77), (103, 0, 31)]
FEW = 100
MOST_LOOKED_AT = 8192
NOT_A_NUMBER = (255, 0, 255)


def _table(stops: list[tuple[int, int, int]]) -> Colours:
    places = np.linspace(0, 255, len(stops))
    channels = [np.interp(np.arange(256), places, channel) for channel in zip(*stops, strict=True)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


SEQUENTIAL = _table(_LIGHTNESS)
"""From dark to light: numbers that are not negative."""
DIVERGING = _table(_SIGNED)
"""Blue below zero, red above."""


class Scale:
    """The range that colours stand for: it takes in what comes, and forgets in some ten frames, so as not to flicker.

    Attributes
    ----------
    low, high : float
        The range.
    """

    FORGETTING = 0.2
    MOST = 8.0
    """Times that what comes may be smaller than the range."""

    def __init__(self) -> None:
        self.low = self.high = 0.0
        self._is_new = True

    @property
    def table(self) -> Colours:
        """The colours that go with it."""
        return DIVERGING if self.low < 0 else SEQUENTIAL

    def follow(self, values: np.ndarray[Any, Any]) -> None:
        """Take in new numbers, without the outermost hundredth."""
        sample = values.reshape(-1)[:: max(1, values.size // MOST_LOOKED_AT)]
        finite = sample[np.isfinite(sample)]
        if not finite.size:
            return
        low, high = np.percentile(finite, (1, 99)) if finite.size > FEW else (finite.min(), finite.max())
        if low < 0:
            high = max(high, -low)
            low = -high
        else:
            low = 0.0
        self._move(float(low), float(high))

    def colour(self, values: np.ndarray[Any, Any]) -> Colours:
        """Return colours of the same shape, with the three channels last."""
        span = (self.high - self.low) or 1.0
        with np.errstate(invalid="ignore"):
            places = np.clip((values.astype(np.float64) - self.low) / span * 255, 0, 255)
        colours: Colours = self.table[np.nan_to_num(places).astype(np.uint8)]
        colours[~np.isfinite(values)] = NOT_A_NUMBER
        return colours

    def _move(self, low: float, high: float) -> None:
        if self._is_new:
            self.low, self.high, self._is_new = low, high, False
            return
        self.low = min(low, self._faded(self.low, low))
        self.high = max(high, self._faded(self.high, high))

    def _faded(self, old: float, new: float) -> float:
        faded = old + self.FORGETTING * (new - old)
        # What has collapsed since would be seen in one colour only; all zeros say nothing of a range.
        return min(faded, self.MOST * new, key=abs) if new else faded
