"""Starts, feeds, watches and ends a recorder process, which draws frames and writes files.

The training process sends numbers through shared memory and messages through a pipe.  A forked child, such as a
DataLoader worker, closes its copies of both.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import numpy as np
import torch

from pytest_torchlens.recorder.recorder_options import RecorderError
from pytest_torchlens.recorder.ring import Ring
from pytest_torchlens.records.files import temporary_file

if TYPE_CHECKING:
    from pytest_torchlens.recorder.recorder_options import RecorderOptions


RESERVED_SLOTS = 2
"""Slots reserved for statistics."""

WORKER_VARIABLE = "PYTEST_LENS_RECORDER"
"""Environment variable that marks a recorder process."""

FINISH_SECONDS = 5.0
"""Seconds that a stopped process has to finish its files."""

MAX_LOG_BYTES = 8_000
"""Last bytes of the process's output that an error repeats; a callback may print at each frame."""

MAX_PENDING_ROWS = 20_000
"""Maximum number of rows that wait for a slot."""


class RecorderProcess:
    """A recorder process, with shared memory for numbers and a pipe for messages."""

    def __init__(self, options: RecorderOptions, number: int) -> None:
        self.options = options
        self.number = number
        self.counts: dict[int, Counts] = {}
        self.rows_dropped = 0
        self._waiting_frames: dict[int, tuple[dict[str, Any], torch.Tensor]] = {}
        self._pending_rows: list[tuple[float, ...]] = []
        self._lock = threading.RLock()
        self._ring = Ring(options.slots, options.slot_values)
        self._log = temporary_file()
        self._process = self._start()
        self.is_forked = self._is_overdue = False
        _processes.add(self)
        self._send(do="start", **self._settings())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def declare(self, item: int, **fields: Any) -> None:
        """Announce an item."""
        self.counts[item] = Counts()
        self._send(do="item", item=item, **fields)

    def send_frame(self, item: int, values: torch.Tensor, **fields: Any) -> None:
        """Copy values into a free slot; without one, apply the policy.

        Parameters
        ----------
        item
            Number of the item.
        values
            On the CPU, at most as many as a slot holds.  They are copied before this returns.
        what
            The other fields of the message.
        """
        if self.is_forked:
            return
        with self._lock:
            self.counts[item].seen += 1
            message = {"do": "frame", "item": item, "shape": list(values.shape)} | fields
            self._send_waiting()
            if self._has_room():
                self._write_slot(message, values)
            elif self.options.policy == "coalesce":
                self.counts[item].coalesced += item in self._waiting_frames
                self._waiting_frames[item] = (message, values.float().clone())
            else:
                self.counts[item].dropped += 1

    def send_rows(self, rows: list[tuple[float, ...]]) -> None:
        """Send rows of statistics; without a free slot they wait."""
        if self.is_forked:
            return
        with self._lock:
            self._pending_rows += rows
            self._send_waiting()
            while self._pending_rows and self._ring.num_free:
                self._put_rows()
            if (excess := len(self._pending_rows) - MAX_PENDING_ROWS) > 0:
                del self._pending_rows[:excess]
                self.rows_dropped += excess

    def trouble(self) -> RecorderError | None:
        """Return why the process ended, with its last output; None while it runs."""
        has_ended = not self.is_forked and self._process.poll() is not None
        return self._error() if has_ended else None

    def close(self) -> RecorderError | None:
        """Wait until everything is written, at most the timeout, then end the process; return the error, if any."""
        if self.is_forked:
            return None
        deadline = time.monotonic() + self.options.timeout
        error: RecorderError | None = None
        try:
            self._drain(deadline)
            self._send(do="end", counts={item: [one.seen, one.dropped] for item, one in self.counts.items()})
            self._end_pipe()
            self._process.wait(max(deadline - time.monotonic(), 0.1))
        except RecorderError as found:
            error = found
        except subprocess.TimeoutExpired:
            self._stop()
        finally:
            self._end_pipe()
        if self._process.poll() != 0:
            error = error or self._error()
        self._count_written()
        self._ring.close()
        self._log.close()
        return error

    def forget(self) -> None:
        """Disable this object in a forked process, and close what it holds open."""
        self.is_forked = True
        if self._pipe.closed:
            return
        # If a surviving child held the pipe open, the end of the training process would go unnoticed.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._pipe.fileno())
        os.close(nothing)

    @property
    def _pipe(self) -> Any:
        return self._process.stdin

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(path for path in sys.path if path)
        windows = sys.platform == "win32"
        # A new interpreter, not a fork: it inherits no CUDA state, no locks and no `__main__`.
        return subprocess.Popen(
            [sys.executable, "-m", "pytest_torchlens.recorder.worker"],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parents[2],
            env=os.environ
            | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", WORKER_VARIABLE: "1"},
            # Ctrl-C goes to the training process only; the recorder process ends when that one ends.
            start_new_session=not windows,
            pass_fds=() if windows else self._ring.file_descriptors,
        )

    def _settings(self) -> dict[str, Any]:
        options = self.options
        return {
            "ring": [options.slots, options.slot_values, self._ring.handle],
            "folder": str(options.folder),
            "number": self.number,
            "title": options.title,
            "directory": str(Path.cwd()),
            "videos": options.videos,
            "series": options.series,
            "tensorboard": options.tensorboard,
            "page": options.page,
            "max_frames": options.max_frames,
            "frames_per_second": options.frames_per_second,
            "size": options.size,
        }

    def _send(self, **message: Any) -> None:
        try:
            self._pipe.write(json.dumps(message).encode() + b"\n")
            self._pipe.flush()
        except (OSError, ValueError):
            self._wait_for_end()
            raise self._error() from None

    def _write_slot(self, message: dict[str, Any], values: torch.Tensor) -> None:
        slot = torch.from_numpy(self._ring.next_slot())
        slot[: values.numel()].view(values.shape).copy_(values)
        self._send(slot=self._ring.fill(), **message)

    def _put_rows(self) -> None:
        slot = self._ring.next_slot()
        wide = slot[: len(slot) // 2 * 2].view(np.float64)
        width = len(self._pending_rows[0])
        fitting = self._pending_rows[: len(wide) // width]
        wide[: len(fitting) * width] = np.array(fitting).reshape(-1)
        del self._pending_rows[: len(fitting)]
        self._send(do="rows", slot=self._ring.fill(), rows=len(fitting), width=width)

    def _check(self) -> None:
        if error := self.trouble():
            raise error

    def _has_room(self) -> bool:
        if self.options.policy == "block":
            while self._ring.num_free <= RESERVED_SLOTS:
                self._check()
                time.sleep(0.001)
        return self._ring.num_free > RESERVED_SLOTS

    def _send_waiting(self) -> None:
        while self._waiting_frames and self._ring.num_free > RESERVED_SLOTS:
            item = next(iter(self._waiting_frames))
            self._write_slot(*self._waiting_frames.pop(item))

    def _drain(self, deadline: float) -> None:
        while self._waiting_frames or self._pending_rows:
            self._check()
            self.send_rows([])
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("recorder", self.options.timeout)
            if self._waiting_frames or self._pending_rows:
                time.sleep(0.005)

    def _stop(self) -> None:
        """Stop an overdue process: let it finish its files, then kill it if it does not end."""
        self._is_overdue = True
        self._process.terminate()
        try:
            self._process.wait(FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _end_pipe(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()

    def _wait_for_end(self) -> None:
        try:
            self._process.wait(FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _error(self) -> RecorderError:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        output = self._log.read().decode(errors="replace").strip()
        status = self._process.returncode
        how = f"was ended by signal {-status}" if status and status < 0 else f"ended with status {status}"
        if self._is_overdue:
            how = f"did not end within {self.options.timeout:g} s and was ended; timeout= gives it more"
        return RecorderError(f"the recorder's process {self.pid} {how}\n{output}".strip())

    def _count_written(self) -> None:
        written = _frames_written(self.options.folder, self.number)
        for item, counts in self.counts.items():
            counts.written = written.get(item, 0)
            counts.dropped = counts.seen - counts.coalesced - counts.written


@dataclass
class Counts:
    """Counts of one item's frames.

    Attributes
    ----------
    seen : int
        Frames that were read.
    written : int
        Frames in the files; known once the recorder is closed.
    dropped : int
        Frames left out because the recorder process lagged.
    coalesced : int
        Frames that a later frame of the same item replaced.
    """

    seen: int = 0
    written: int = 0
    dropped: int = 0
    coalesced: int = 0


def _frames_written(folder: Path | None, number: int) -> dict[int, int]:
    try:
        report = json.loads((Path(str(folder)) / f"recording-{number}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {item["item"]: item["frames"] for item in report["items"]}


def check_not_worker() -> None:
    """Check that this is not a recorder process: importing a callback's file may create a recorder.

    Raises
    ------
    RuntimeError
        If it is a recorder process.
    """
    if WORKER_VARIABLE in os.environ:
        raise RuntimeError(
            "the recorder process imports the callback's file, and that file creates a recorder when it is imported: "
            'move the training under  if __name__ == "__main__":  or the callback into its own file'
        )


_processes: weakref.WeakSet[RecorderProcess] = weakref.WeakSet()


def _after_fork() -> None:
    for recorder_process in list(_processes):
        recorder_process.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
