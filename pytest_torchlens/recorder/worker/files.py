"""Names files of a recording, appends to files, and reads the reports in a folder."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.records.files import remove
from pytest_torchlens.records.files import writing

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = 80


class WholeFile:
    """A file to append to; an incomplete write is undone.

    Parameters
    ----------
    path
        An existing file is unlinked; a process that still writes it keeps its own copy.
    """

    def __init__(self, path: Path) -> None:
        remove(path)
        self._path = path
        with writing(path):
            self._file = path.open("wb", buffering=0)
        self.size = 0

    def append(self, data: bytes) -> None:
        """Append to it.

        Raises
        ------
        UnwritableError
            If writing fails; the file is then unchanged.
        """
        with writing(self._path):
            try:
                self._file.seek(self.size)
                self._write(data)
            except OSError:
                self._file.truncate(self.size)
                raise
        self.size += len(data)

    def replace(self, place: int, data: bytes) -> None:
        """Write over a few bytes."""
        with writing(self._path):
            self._file.seek(place)
            self._write(data)

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]


def file_stem(number: int, name: str) -> str:
    """Return a file name for an item, without suffix: unique among items, and valid on any file system.

    Examples
    --------
    >>> file_stem(3, "net/features.0.grad")
    '003-net_features.0.grad'
    """
    safe = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:LONGEST].rstrip(".")
    return f"{number:03d}-{safe}"


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Return the reports of a recording's processes, in their order; ignore other files."""
    reports = []
    for path in sorted(folder.glob("recording-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            report = json.loads(path.read_text(encoding="utf-8"))
            reports += [report] if {"ended", "items"} <= set(report) else []
    return reports
