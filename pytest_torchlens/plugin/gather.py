"""How reports of models get from the process that ran them to the one that tells of them."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
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
        Where the controller's is; None makes a new one when it is first needed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder
        self._made: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder; it exists."""
        if self._given:
            return self._given
        if self._made is None:
            self._made = Path(tempfile.mkdtemp(prefix="pytest-lens-"))
        return self._made

    def write(self, report: ModelReport) -> None:
        """Put a report in place, whole or not at all."""
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

    def remove(self) -> None:
        """Remove the folder if it was made here."""
        if self._made:
            shutil.rmtree(self._made, ignore_errors=True)

    def _path(self, nodeid: str) -> Path:
        digest = hashlib.blake2b(nodeid.encode(), digest_size=16).hexdigest()
        return self.folder / f"{digest}.json.gz"
