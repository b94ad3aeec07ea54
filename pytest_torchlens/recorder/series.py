"""Statistics of one tensor over the steps, which tests can query."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from dataclasses import fields
from typing import Any
from typing import TypeVar

import numpy as np

from pytest_torchlens.recorder.statistics import NOT_MEASURED
from pytest_torchlens.recorder.statistics import Statistics
from pytest_torchlens.records.names import close
from pytest_torchlens.records.names import nearest

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Row(Statistics):
    """The measurements of a tensor in one step: its statistics, and values that only training has.

    Attributes
    ----------
    step : int
        The step, from 0.
    call : int
        Number of the tensor among those of this name in the step, from 1: a layer may be called several times.
    ratio : float
        Norm of an update divided by the norm of the values before it.  NaN for other items.
    dead : float
        Share of units that were zero in all samples; NaN unless ``dead_units`` is expected.
    """

    step: int
    call: int
    ratio: float = NOT_MEASURED
    dead: float = NOT_MEASURED


COLUMNS = ("step", "call", *(field.name for field in fields(Statistics)), "ratio", "dead")


def number_row(number: float, step: int) -> Row:
    """Return a number passed to `step` or `log` as a row."""
    return Row(
        step=step,
        call=1,
        count=1,
        mean=number,
        std=NOT_MEASURED,
        norm=abs(number),
        min=number,
        max=number,
        zeros=float(number == 0),
        nans=1 - math.isfinite(number),
    )


class Series:
    """The latest rows of one tensor; each column is an attribute, an array over the rows.

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
            raise AttributeError(f"unknown series column {column!r}; {close(column, COLUMNS) or ', '.join(COLUMNS)}")
        return np.array([getattr(row, column) for row in self.rows])


class ByName(dict[str, T]):
    """A value for each tracked item, by name; the error for an unknown name suggests the nearest."""

    def __missing__(self, name: str) -> T:
        from pytest_torchlens.history.lookup import LookupKeyError

        raise LookupKeyError(f"nothing named {name!r} is tracked; {nearest(str(name), self)}")
