"""The folder of a recording: of one recorder at a time, and without what an earlier recording left there."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pytest_torchlens.recorder.forks import forget_in_forks
from pytest_torchlens.recorder.recorder_options import RecorderError
from pytest_torchlens.recorder.worker.files import read_reports

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWN = ("recording-*.json", "series.*", "index.html", "tensorboard/events.out.tfevents.*")


class OwnFolder:
    """Makes a folder, keeps other recorders out of it, and removes what an earlier one wrote.

    It is emptied here, before a process beside is started: one that starts late would remove what another has written.

    Parameters
    ----------
    path
        The folder.

    Raises
    ------
    RecorderError
        If it cannot be made or emptied, or another recorder, of any process, writes into it.
    """

    def __init__(self, path: Path) -> None:
        self._lock = -1
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            for file in set(_earlier(path)):
                file.unlink(missing_ok=True)
        except BlockingIOError:
            self.close()
            raise RecorderError(
                f"folder={str(path)!r}: another recorder writes into it; close that one first, or give each its own "
                "folder, such as one a process"
            ) from None
        except OSError as error:
            self.close()
            raise RecorderError(f"a file could not be written: {error}") from None
        forget_in_forks(self)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let other recorders in."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    forget = close


def _locked(path: Path) -> int:
    if sys.platform == "win32":
        return -1
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise
    except OSError:
        pass  # not every network's disk can lock
    return lock


def _earlier(folder: Path) -> Iterator[Path]:
    """Yield what an earlier recording wrote; nothing where there was none, for then all files are the user's."""
    reports = read_reports(folder)
    names = [name for report in reports for item in report["items"] for name in item["files"]]
    yield from (path for name in names if (path := folder / name).parent == folder)
    for pattern in OWN if reports else ():
        yield from folder.glob(pattern)
