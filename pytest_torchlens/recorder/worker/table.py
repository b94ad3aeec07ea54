"""The table of statistics as CSV: whole lines at any time, also on a full disk."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING

from pytest_torchlens.recorder.worker.files import WholeFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COLUMNS = (
    *("item", "kind", "step", "call", "count", "mean", "std", "norm"),
    *("min", "max", "zeros", "nans", "ratio", "dead"),
)
WORDS = ("item", "kind")
WHOLE = {"step", "call", "count", "nans"}


class Table:
    """Appends rows."""

    def __init__(self, path: Path) -> None:
        self._file = WholeFile(path)
        self._append([COLUMNS])

    def write(self, rows: Sequence[tuple[str, str, Sequence[float]]]) -> None:
        """Append rows: name, kind, and the numbers of the other columns.

        Raises
        ------
        OSError
            If they cannot be written; the file then ends with the row before them.
        """
        self._append([(name, kind, *map(_text, COLUMNS[2:], numbers)) for name, kind, numbers in rows])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, rows: Sequence[Sequence[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.append(text.getvalue().encode())


def _text(column: str, number: float) -> str:
    if math.isnan(number):
        return ""
    return str(int(number)) if column in WHOLE else f"{number:.9g}"
