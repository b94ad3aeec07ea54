"""The table of statistics as Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchlens.recorder.worker.table import COLUMNS
from pytest_torchlens.recorder.worker.table import WHOLE
from pytest_torchlens.recorder.worker.table import WORDS

if TYPE_CHECKING:
    from pathlib import Path


def to_parquet(path: Path) -> None:
    """Write a table beside its CSV, which goes once that is done: until then it is what can be read."""
    import pyarrow
    from pyarrow import csv
    from pyarrow import parquet

    words = dict.fromkeys(WORDS, pyarrow.string())
    types = {name: pyarrow.int64() if name in WHOLE else pyarrow.float64() for name in COLUMNS} | words
    table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=types))
    part = path.with_suffix(".parquet.part")
    parquet.write_table(table, part)
    part.replace(path.with_suffix(".parquet"))
    path.unlink()
