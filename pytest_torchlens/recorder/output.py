"""Sends frames and rows to the recorder processes; without a folder, sends nothing.

Locks the folder of a recording, so that only one recorder writes into it, and removes the files of an earlier one.
"""

from __future__ import annotations

import contextlib
from operator import attrgetter
from typing import TYPE_CHECKING
from typing import Any

from filelock import FileLock
from filelock import Timeout

from pytest_torchlens.recorder.process import RecorderProcess
from pytest_torchlens.recorder.recorder_options import RecorderError
from pytest_torchlens.recorder.series import COLUMNS
from pytest_torchlens.recorder.worker.files import read_reports
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.records.files import check_folder
from pytest_torchlens.records.files import make_folder
from pytest_torchlens.records.files import remove

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from pytest_torchlens.recorder.process import Counts
    from pytest_torchlens.recorder.readings import StepReading
    from pytest_torchlens.recorder.recorder_options import RecorderOptions
    from pytest_torchlens.recorder.series import Row
    from pytest_torchlens.recorder.tracker import Item


_columns = attrgetter(*COLUMNS)


class Output:
    """Distributes items to recorder processes, which start with the first item.

    The first process writes the table of all items.  Each item's frames always go to the same process.
    """

    def __init__(self, options: RecorderOptions) -> None:
        self._options = options
        self._workers: list[RecorderProcess] = []
        self._folder: RecordingFolder | None = None
        self._error: RecorderError | None = None
        self._is_off = options.folder is None

    @property
    def pids(self) -> list[int]:
        """Ids of the recorder processes."""
        return [worker.pid for worker in self._workers]

    def declare(self, item: Item) -> None:
        """Announce an item."""
        if not (self._workers or self._is_off):
            self._send(self._start, self._options.folder)
        for worker in self._workers:
            own = worker is self._worker(item)
            self._send(worker.declare, item.number, **item.announcement(), callback=item.callback if own else None)

    def show(self, reading: StepReading, values: torch.Tensor, step: int, note: str) -> None:
        """Send a frame."""
        if self._is_off or not self._is_shown(reading.item):
            return
        statistics = reading.measured.statistics()
        header = {
            "step": step,
            "note": note,
            "full": reading.shape,
            "dtype": reading.dtype,
            "facts": {name: getattr(statistics, name) for name in ("mean", "std", "min", "max", "nans")},
        }
        self._send(self._worker(reading.item).send_frame, reading.item.number, values, **header)

    def write(self, rows: list[tuple[Item, Row]]) -> None:
        """Send rows of statistics."""
        if self._workers:
            self._send(self._workers[0].send_rows, [(item.number, *_columns(row)) for item, row in rows])

    def counts(self, item: Item) -> Counts | None:
        """Return how many frames of an item were written or dropped; None if it has none."""
        return self._worker(item).counts.get(item.number) if self._workers and self._is_shown(item) else None

    @property
    def rows_dropped(self) -> int:
        """Rows of statistics that were not written."""
        return sum(worker.rows_dropped for worker in self._workers)

    def trouble(self) -> RecorderError | None:
        """Return the error that stopped sending, once; None while all recorder processes run."""
        if not self._is_off:
            self._error = next((error for worker in self._workers if (error := worker.trouble())), None)
            self._is_off = self._error is not None
        error, self._error = self._error, None
        return error

    def close(self) -> RecorderError | None:
        """Finish all files, and return the first error.  The first process ends last, because it writes the page."""
        was_off, self._is_off = self._is_off, True
        errors = [self._error, *(worker.close() for worker in reversed(self._workers))]
        if self._folder:
            self._folder.close()
        return None if was_off and not self._error else next((error for error in errors if error), None)

    def _start(self, folder: Path) -> None:
        self._folder = RecordingFolder(folder)
        try:
            for number in range(self._options.workers):
                self._workers.append(RecorderProcess(self._options, number))
        except OSError as error:
            size = 4 * self._options.slots * self._options.slot_values / 2**20
            raise RecorderError(
                f"a recorder process could not be started with {size:,.0f} MiB of shared memory, which slots= and "
                f"slot_values= ask for: {error}"
            ) from None

    def _send(self, send: Callable[..., None], /, *args: Any, **kwargs: Any) -> None:
        """Send something.  An error is reported when the step ends, not inside an autograd hook."""
        if self._is_off:
            return
        try:
            send(*args, **kwargs)
        except RecorderError as error:
            self._error, self._is_off = error, True

    def _worker(self, item: Item) -> RecorderProcess:
        return self._workers[item.number % len(self._workers)]

    def _is_shown(self, item: Item) -> bool:
        return (item.drawing.video and self._options.videos) or item.drawing.callback is not None


OWN = ("recording-*.json", "series.*", "index.html", "tensorboard/events.out.tfevents.*")

LOCK = ".recorder.lock"
"""File that a recorder locks while it writes into the folder; an unlocked one is left over from a killed process."""


class RecordingFolder:
    """Makes a folder, keeps other recorders out of it, and removes what an earlier one wrote.

    The training process empties the folder before it starts a recorder process.  A process that starts late would
    otherwise remove files of another.

    Parameters
    ----------
    path
        The folder.

    Raises
    ------
    RecorderError
        If it cannot be created or emptied, or another recorder in any process writes into it.
    """

    def __init__(self, path: Path) -> None:
        self._lock_file = path / LOCK
        self._lock = FileLock(self._lock_file, thread_local=False, fallback_to_soft=False)
        try:
            check_folder(path)
            make_folder(path)
            self._acquire()
            for file in set(_earlier_files(path)):
                remove(file)
        except Timeout:
            self.close()
            raise RecorderError(
                f"folder={str(path)!r}: another recorder writes into it; close that one first, or give each its own "
                "folder, such as one for each process"
            ) from None
        except UnwritableError as error:
            self.close()
            raise RecorderError(f"folder={str(path)!r}: {error}") from None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder for other recorders.  A forked process does not hold the lock, so it releases nothing."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # Windows removes it after the release
                remove(self._lock_file)
            self._lock.release()

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise
        except OSError:
            pass  # the folder is read-only or full, which writing reports; some network file systems cannot lock


def _earlier_files(folder: Path) -> Iterator[Path]:
    """Yield the files of an earlier recording; without one, all files are the user's."""
    reports = read_reports(folder)
    names = [name for report in reports for item in report["items"] for name in item["files"]]
    yield from (path for name in names if (path := folder / name).parent == folder)
    for pattern in OWN if reports else ():
        yield from folder.glob(pattern)
