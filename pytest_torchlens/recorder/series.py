"""Statistics of one tensor over the steps, kept for tests to ask."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from dataclasses import fields
from typing import Any

import numpy as np

from pytest_torchlens.records.near import close


@dataclass(frozen=True)
class Row:
    """What was measured of a tensor in one step.

    Attributes
    ----------
    step : int
        The step, from 0.
    call : int
        Which of the tensors that the step had under this name, from 1: a layer called twice, or accumulation.
    count, mean, std, norm, min, max, zeros, nans
        As in `Statistics`.
    ratio : float
        Of an update: its norm over that of the values before it.  NaN for others.
    dead : float
        Share of units that were zero in all samples; measured where it is expected to be of some size.
    """

    step: int
    call: int
    count: int
    mean: float
    std: float
    norm: float
    min: float
    max: float
    zeros: float
    nans: int
    ratio: float
    dead: float


def number_row(number: float, step: int) -> Row:
    """Return a number that the loop told as a row."""
    is_finite = math.isfinite(number)
    return Row(
        step, 1, 1, number, math.nan, abs(number), number, number, float(number == 0), 1 - is_finite, math.nan, math.nan
    )


COLUMNS = tuple(field.name for field in fields(Row))


class Series:
    """The rows of one tensor, the latest of them; each column is an attribute, an array over the rows.

    Examples
    --------
    >>> series = Series("fc.weight.grad", keep=10_000)
    >>> len(series.norm)
    0
    """

    def __init__(self, name: str, keep: int) -> None:
        self.name = name
        self.rows: deque[Row] = deque(maxlen=keep)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<Series {self.name}: {len(self)} rows>"

    def __getattr__(self, column: str) -> np.ndarray[Any, np.dtype[Any]]:
        if column not in COLUMNS:
            raise AttributeError(f"a series has no column {column!r}; {close(column, COLUMNS) or ', '.join(COLUMNS)}")
        return np.array([getattr(row, column) for row in self.rows])
