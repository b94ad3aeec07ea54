"""Makes a small picture of an activation: gray maps of its channels, for the report's pages."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

import torch
from torch.nn import functional as F

_CHANNELS, _COLUMNS, _MAP = 16, 4, 16
"""Channels that are shown, how many in a row, and the most pixels of each side of one."""
_TABLE: Final = 64
"""The most pixels of each side, where there are no channels: tokens and features, or examples and features."""
_IMAGE: Final = 3
"""Dimensions of an example with channels."""


def picture_of(values: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return height, width and the pixels, row by row: 0 for `low` to 255 for `high`, which is also infinity; NaN is 0.

    Of a tensor of four dimensions or more it is the first example, with its first channels beside each other; smaller
    ones are a table, of three dimensions the first example's.  Larger maps are averaged to fewer pixels.

    Parameters
    ----------
    values
        Real numbers, of any shape that has elements.
    low, high
        Their extremes.
    """
    has_channels = values.dim() > _IMAGE
    while values.dim() > (_IMAGE if has_channels else 2):
        values = values[0]
    maps = values.reshape((1, 1, 1, *values.shape)[-_IMAGE:])[:_CHANNELS].float().cpu()
    maps = _smaller(maps.nan_to_num(low, high, low), _MAP if has_channels else _TABLE)
    gray = (maps - low).mul_(255 / (high - low) if high > low else 0.0).clamp_(0, 255).round_()
    sheet = _side_by_side(gray)
    return torch.cat([torch.tensor([*map(float, sheet.shape)]), sheet.flatten()])


def _smaller(maps: torch.Tensor, most: int) -> torch.Tensor:
    height, width = maps.shape[-2:]
    return F.adaptive_avg_pool2d(maps, (min(height, most), min(width, most)))


def _side_by_side(maps: torch.Tensor) -> torch.Tensor:
    """Return maps in rows of four, a black line between them."""
    columns = min(_COLUMNS, len(maps))
    missing = -len(maps) % columns
    framed = F.pad(maps, (0, 1, 0, 1, 0, missing))
    rows = [torch.cat([*row], dim=1) for row in torch.split(framed, columns)]
    return torch.cat(rows)[:-1, :-1]


def as_text(picture: Sequence[float]) -> str:
    """Return height, width and pixels as ``"17x35:"`` and base64; empty if there is no picture."""
    if not picture:
        return ""
    height, width, *pixels = map(int, picture)
    return f"{height}x{width}:{base64.b64encode(bytes(pixels)).decode()}"
