"""Names of a recording's files, files that are appended to, and the reports in a folder."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = 80


class WholeFile:
    """A file that is appended to: what cannot be written whole is taken back.

    Parameters
    ----------
    path
        Where one is there, it is left to whoever still writes it, and gone from the folder.
    """

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._file = path.open("wb", buffering=0)
        self.size = 0

    def append(self, data: bytes) -> None:
        """Append to it.

        Raises
        ------
        OSError
            If that cannot be done; the file is then as it was before.
        """
        try:
            self._file.seek(self.size)
            self._write(data)
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(data)

    def replace(self, place: int, data: bytes) -> None:
        """Write over a few bytes."""
        self._file.seek(place)
        self._write(data)

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]


def file_stem(number: int, name: str) -> str:
    """Return a file name for an item, without suffix: unlike any other item's, and safe on any disk.

    Examples
    --------
    >>> file_stem(3, "net/features.0.grad")
    '003-net_features.0.grad'
    """
    safe = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:LONGEST].rstrip(".")
    return f"{number:03d}-{safe}"


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Return what the processes of a recording have reported, the first of them first; of other files nothing."""
    found = []
    for path in sorted(folder.glob("recording-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            report = json.loads(path.read_text(encoding="utf-8"))
            found += [report] if {"ended", "items"} <= set(report) else []
    return found
