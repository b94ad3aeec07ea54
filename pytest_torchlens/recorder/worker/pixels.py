"""Draws tensors as pixels: one class for each view, and the colour scale.

Colours come from lookup tables, so that a frame costs one lookup for each pixel.
"""

from __future__ import annotations

import math
from typing import Any
from typing import Protocol

import numpy as np
from PIL import Image

Colours = np.ndarray[Any, np.dtype[np.uint8]]


Array = np.ndarray[Any, np.dtype[np.float32]]

Points = np.ndarray[Any, np.dtype[np.float64]]

BACK = (24, 27, 31)

BAR = (110, 168, 254)

BINS = 64

MOST_TILES = 400

MOST_POINTS = 2000

AXES = 2

TILE = 2
"""Number of dimensions of a tile."""


def new_view(name: str, kind: str, shape: tuple[int, ...]) -> View:
    """Return the view of that name; for ``auto`` the one that fits the shape."""
    if name == "auto":
        name = _fitting(kind, shape)
    views: dict[str, type[View]] = {
        "heatmap": Heatmap,
        "channels": Channels if len(shape) > TILE else Heatmap,
        "histogram": Histogram,
        "pca": Projection,
        "square": Square,
    }
    return views[name]()


def _fitting(kind: str, shape: tuple[int, ...]) -> str:
    if len(shape) < TILE or min(shape[-2:]) == 1:
        return "histogram"
    return "heatmap" if len(shape) == TILE else "channels"


class View(Protocol):
    """Draws the frames of one item, one after the other."""

    def draw(self, values: Array, width: int, height: int) -> Colours:
        """Return pixels of `height` × `width` × 3."""

    def caption(self) -> str:
        """Return what the picture shows, in a few words."""


class Heatmap:
    """Two dimensions as a picture, one colour for each number."""

    def __init__(self) -> None:
        self.scale = ColourScale()

    def draw(self, values: Array, width: int, height: int) -> Colours:
        """Draw the last two dimensions; stack the others vertically."""
        rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(1, -1)
        self.scale.follow(rows)
        return stretch(self.scale.colour(rows), width, height)

    def caption(self) -> str:
        """Return the range of the colours."""
        return f"colours from {self.scale.low:.3g} to {self.scale.high:.3g}"


class Square(Heatmap):
    """All numbers in order, line by line, as a square: for shapes that suit no other view."""

    def draw(self, values: Array, width: int, height: int) -> Colours:
        """Draw as many lines as columns."""
        side = math.ceil(math.sqrt(values.size))
        square = np.full(side * side, np.nan, np.float32)
        square[: values.size] = values.reshape(-1)
        self.scale.follow(values)
        colours = self.scale.colour(square)
        colours[values.size :] = BACK
        return fit(colours.reshape(side, side, 3), width, height)


class Channels(Heatmap):
    """A grid with one tile for each channel."""

    def draw(self, values: Array, width: int, height: int) -> Colours:
        """Draw one tile for each entry of the other dimensions, in order."""
        tiles = values.reshape(-1, *values.shape[-2:])
        tiles = tiles[:: max(1, -(-len(tiles) // MOST_TILES))]
        self.scale.follow(tiles)
        return fit(tile_grid(self.scale.colour(tiles), width / height), width, height)


class Histogram:
    """A histogram of the values."""

    def __init__(self) -> None:
        self.scale = ColourScale()
        self._most = 0.0

    def draw(self, values: Array, width: int, height: int) -> Colours:
        """Draw bars over the range of all frames so far."""
        flat = values[np.isfinite(values)]
        self.scale.follow(flat)
        low, high = self.scale.low, self.scale.high
        counts, _ = np.histogram(np.clip(flat, low, high), BINS, (low, high) if high > low else (low, low + 1))
        heights = np.sqrt(counts / max(flat.size, 1))
        self._most = max(float(heights.max(initial=0)), self._most * 0.95) or 1.0
        return draw_bars(heights / self._most, width, height)

    def caption(self) -> str:
        """Return the range of the bars."""
        return f"{BINS} bins from {self.scale.low:.3g}  to  {self.scale.high:.3g}, heights as square roots"


class Projection:
    """Rows as points on their two principal axes, which turn as little as possible from frame to frame."""

    def __init__(self) -> None:
        self._axes: Points | None = None
        self._reach = 0.0
        self._share = 0.0

    def draw(self, values: Array, width: int, height: int) -> Colours:
        """Draw a point for each entry of the first dimension."""
        rows = values.reshape(len(values), -1) if values.ndim > 1 else values.reshape(-1, 1)
        rows = np.where(np.isfinite(rows), rows, 0).astype(np.float64)
        rows = rows[:: max(1, -(-len(rows) // MOST_POINTS))]
        points = self._project(rows - rows.mean(axis=0))
        self._reach = max(float(np.abs(points).max(initial=0)), self._reach * 0.95) or 1.0
        return scatter(points / self._reach, width, height)

    def caption(self) -> str:
        """Return how much of the variance the picture shows."""
        return f"two main directions, {self._share:.0%} of the variance"

    def _project(self, rows: Points) -> Points:
        axes, self._share = main_axes(rows)
        if self._axes is not None and self._axes.shape == axes.shape:
            left, _, right = np.linalg.svd(self._axes @ axes.T)
            axes = left @ right @ axes
        self._axes = axes
        points: Points = rows @ axes.T
        return points


def main_axes(rows: Points) -> tuple[Points, float]:
    """Return the two principal axes of centred rows, and their share of the variance."""
    is_wide = rows.shape[0] < rows.shape[1]
    products = rows @ rows.T if is_wide else rows.T @ rows
    sizes, vectors = np.linalg.eigh(products)
    axes = vectors[:, ::-1][:, :AXES].T
    axes = axes @ rows if is_wide else axes
    lengths = np.linalg.norm(axes, axis=1, keepdims=True)
    axes = np.divide(axes, lengths, out=np.zeros_like(axes), where=lengths > 0)
    axes = np.pad(axes, ((0, AXES - len(axes)), (0, 0)))
    return axes, float(sizes[::-1][:AXES].sum() / max(sizes.sum(), np.finfo(float).tiny))


def tile_grid(tiles: Colours, aspect: float) -> Colours:
    """Return tiles side by side with a pixel between them, in about the given proportions."""
    count, height, width, _ = tiles.shape
    columns = max(1, min(count, round(math.sqrt(count * aspect * height / width))))
    lines = -(-count // columns)
    picture = np.full((lines * columns, height + 1, width + 1, 3), BACK, np.uint8)
    picture[:count, :-1, :-1] = tiles
    picture = picture.reshape(lines, columns, height + 1, width + 1, 3).swapaxes(1, 2)
    return picture.reshape(lines * (height + 1), columns * (width + 1), 3)


def stretch(colours: Colours, width: int, height: int) -> Colours:
    """Return a picture of exactly that size; a small one is enlarged with hard edges."""
    lines, columns = colours.shape[:2]
    smooth = lines > height or columns > width
    return _resized(colours, width, height, smooth)


def fit(colours: Colours, width: int, height: int) -> Colours:
    """Return a picture of that size with the given one in the middle, in its own proportions."""
    lines, columns = colours.shape[:2]
    scale = min(width / columns, height / lines)
    inner = _resized(colours, max(1, int(columns * scale)), max(1, int(lines * scale)), scale < 1)
    frame = np.full((height, width, 3), BACK, np.uint8)
    top, left = (height - inner.shape[0]) // 2, (width - inner.shape[1]) // 2
    frame[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
    return frame


def draw_bars(heights: Points, width: int, height: int) -> Colours:
    """Return bars from the bottom; `heights` are shares of the picture's height."""
    columns = np.minimum(np.arange(width) * len(heights) // width, len(heights) - 1)
    tops = (1 - 0.95 * heights[columns]) * height
    is_bar = np.arange(height)[:, None] >= tops
    picture: Colours = np.array([BACK, BAR], np.uint8)[is_bar.astype(int)]
    return picture


def scatter(points: Points, width: int, height: int) -> Colours:
    """Return a picture of points, coloured by their order; its edges are at -1 and 1."""
    frame = np.full((height, width, 3), BACK, np.uint8)
    frame[height // 2, :] = frame[:, width // 2] = (60, 66, 74)
    across = ((points[:, 0] * 0.95 + 1) / 2 * (width - 5)).astype(int)
    down = ((1 - points[:, 1] * 0.95) / 2 * (height - 5)).astype(int)
    order = ColourScale()
    order.low, order.high = 0.0, max(len(points) - 1, 1)
    colours = order.colour(np.arange(len(points), dtype=np.float32))
    for y in range(4):
        for x in range(4):
            frame[down + y, across + x] = colours
    return frame


def _resized(colours: Colours, width: int, height: int, smooth: bool) -> Colours:
    how = Image.Resampling.BOX if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(colours).resize((width, height), how))


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
"""From dark to light, for numbers that are not negative."""

DIVERGING = _table(_SIGNED)
"""Blue below zero, red above."""


class ColourScale:
    """The value range of the colours.  It follows new values, and shrinks over about ten frames to avoid flicker.

    Attributes
    ----------
    low, high : float
        The range.
    """

    FORGETTING = 0.2
    MOST = 8.0
    """Maximum ratio of the range to new values."""

    def __init__(self) -> None:
        self.low = self.high = 0.0
        self._is_new = True

    @property
    def table(self) -> Colours:
        """The colour table of the range."""
        return DIVERGING if self.low < 0 else SEQUENTIAL

    def follow(self, values: np.ndarray[Any, Any]) -> None:
        """Extend the range by new values, except for the outermost percent on each side."""
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
        # Otherwise values that have collapsed would show in one colour.  All zeros do not define a range.
        return min(faded, self.MOST * new, key=abs) if new else faded
