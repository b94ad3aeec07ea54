"""How reports of models get from the process that ran them to the one that tells of them."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from pathlib import Path

from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json


class Gathered:
    """A folder with one file a model, shared by the controller and its workers.

    Files survive a worker that dies, need no pickle, and are too large for pytest's own reports.

    Parameters
    ----------
    folder
        Where; made when it is first written to.
    stamps
        What must be the same for a report to count in a later run, by node id: versions, options, zoo file.
    """

    def __init__(self, folder: Path, stamps: dict[str, str]) -> None:
        self.folder = folder
        self._stamps = stamps

    def write(self, report: ModelReport) -> None:
        """Put a report in place, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(report.nodeid)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(gzip.compress(to_json(report).encode(), compresslevel=1))
        part.replace(path)

    def read(self, nodeid: str) -> ModelReport | None:
        """Return the report of an item; None where it came to none."""
        path = self._path(nodeid)
        if not path.exists():
            return None
        return from_json(gzip.decompress(path.read_bytes()).decode(), ModelReport)

    def mark_passed(self, nodeid: str) -> None:
        """Note that pytest counts an item as passed."""
        if self.folder.exists():
            self._mark(nodeid).touch()

    def has_passed(self, nodeid: str) -> bool:
        """Whether an item has passed, in this run or in the one that is resumed."""
        return self._mark(nodeid).exists() and self._path(nodeid).exists()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _mark(self, nodeid: str) -> Path:
        return self._path(nodeid).with_suffix(".passed")

    def _path(self, nodeid: str) -> Path:
        text = f"{nodeid}\n{self._stamps.get(nodeid, '')}"
        return self.folder / f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.json.gz"
