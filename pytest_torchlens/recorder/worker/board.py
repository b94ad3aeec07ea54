"""Event files for TensorBoard."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tensorboard.summary import Writer

from pytest_torchlens.recorder.worker.table import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SHOWN = ("mean", "std", "norm", "min", "max", "zeros", "nans", "ratio", "dead")


class Board:
    """Writes each column of statistics as a scalar of its own."""

    def __init__(self, folder: Path) -> None:
        self._writer = Writer(str(folder))

    def write(self, rows: Sequence[tuple[str, Sequence[float]]]) -> None:
        """Write rows: the item's name, and the numbers of the table's columns."""
        for name, numbers in rows:
            row = dict(zip(COLUMNS[2:], numbers, strict=True))
            for column in SHOWN:
                if not math.isnan(row[column]):
                    self._writer.add_scalar(f"{name}/{column}", row[column], int(row["step"]))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
