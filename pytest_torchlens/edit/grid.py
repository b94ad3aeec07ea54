"""Edits for a heat map: one for each activation and each part of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from pytest_torchlens.edit.places import Part


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
    TypeError, ValueError
        If the keys are not in a list, there is not one part by name, or a row or column is there twice.
    """
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise TypeError(f"grid: expected keys of the history in a list, got {keys!r:.80}")
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
