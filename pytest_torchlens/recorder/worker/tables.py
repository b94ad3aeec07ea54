"""Writes the table of statistics: as CSV, which has only whole lines at any time, as Parquet, and for TensorBoard."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING

from pytest_torchlens.recorder.worker.files import WholeFile
from pytest_torchlens.records import replacing
from pytest_torchlens.records.files import remove
from pytest_torchlens.records.files import writing

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


def to_parquet(path: Path) -> None:
    """Convert a CSV table to Parquet, and remove the CSV once that is complete."""
    import pyarrow
    from pyarrow import csv
    from pyarrow import parquet

    words = dict.fromkeys(WORDS, pyarrow.string())
    types = {name: pyarrow.int64() if name in WHOLE else pyarrow.float64() for name in COLUMNS} | words
    table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=types))
    with replacing(path.with_suffix(".parquet")) as part:
        parquet.write_table(table, part)
    remove(path)


STATISTICS = ("mean", "std", "norm", "min", "max", "zeros", "nans", "ratio", "dead")


class Board:
    """Writes each column of statistics as a separate scalar."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary import Writer

        self._folder = folder
        with writing(folder):
            self._writer = Writer(str(folder))

    def write(self, rows: Sequence[tuple[str, Sequence[float]]]) -> None:
        """Write rows: the item's name, and the numbers of the table's columns."""
        with writing(self._folder):
            for name, numbers in rows:
                row = dict(zip(COLUMNS[2:], numbers, strict=True))
                for column in STATISTICS:
                    if not math.isnan(row[column]):
                        self._writer.add_scalar(f"{name}/{column}", row[column], int(row["step"]))
            self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        with writing(self._folder):
            self._writer.close()
