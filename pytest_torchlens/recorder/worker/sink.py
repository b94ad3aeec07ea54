"""What the process that records says, read by a thread of its own: its end is noticed whatever is going on here.

Takes messages to the files that they are for.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from pytest_torchlens.recorder.ring import Ring
from pytest_torchlens.recorder.worker.files import file_stem
from pytest_torchlens.recorder.worker.painter import Callback
from pytest_torchlens.recorder.worker.tables import Table
from pytest_torchlens.records import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchlens.recorder.worker.painter import Painter
    from pytest_torchlens.recorder.worker.tables import Board
    from pytest_torchlens.recorder.worker.video import Video


GRACE = 30.0
"""Seconds in which one message at least has to be done with, once the process that records has ended without a word."""


class Messages:
    """Messages in the order they were sent, until one says that it is the last, or their sender is gone.

    Parameters
    ----------
    source
        File descriptor that they come from.

    Attributes
    ----------
    is_stopped : bool
        Whether no further message was to be taken.
    last : dict or None
        The message that said that it was the last.
    """

    def __init__(self, source: int) -> None:
        self.last: dict[str, Any] | None = None
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.is_stopped = False
        self._done = 0
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (message := self._queue.get()) is not None and not self.is_stopped:
            yield message
            self._done += 1

    def stop(self) -> None:
        """Take no further message."""
        self.is_stopped = True
        self._queue.put(None)

    def _read(self, source: int) -> None:
        for line in _lines(source):
            message = json.loads(line)
            if message["do"] == "end":
                self.last = message
                break
            self._queue.put(message)
        self._queue.put(None)
        if self.last is None:
            self._guard()

    def _guard(self) -> None:
        """End this process when it does not get on: a callback that hangs must not keep it alive for ever."""
        done = -1
        while done != self._done:
            done = self._done
            time.sleep(GRACE)
        os._exit(4)


def _lines(source: int) -> Iterator[bytes]:
    """Yield lines from a file descriptor.  Python's own files hold a lock while they wait, and could not be left."""
    rest = b""
    while data := os.read(source, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


@dataclass
class Sunk:
    """An item, and what is done with it here."""

    number: int
    name: str
    kind: str
    view: str
    is_filmed: bool
    callback: Callback | None
    frames: int = 0
    painter: Painter | None = None
    video: Video | None = None


class Sink:
    """All files of one process beside.

    Parameters
    ----------
    settings
        The first message.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        os.chdir(settings["directory"])
        self.folder = Path(settings["folder"])
        self._ring = Ring(*settings["ring"])
        self._items: dict[int, Sunk] = {}
        self._is_first = settings["number"] == 0
        self._table = Table(self.folder / "series.csv") if self._is_first else None
        self._board: Board | None = self._new_board() if self._is_first and settings["tensorboard"] else None

    def take(self, message: dict[str, Any]) -> None:
        """Do what a message says."""
        getattr(self, f"_take_{message['do']}")(message)

    def close(self, reason: str, counts: dict[str, tuple[int, int]]) -> list[Exception]:
        """Finish all files, each whatever becomes of the others; return what went wrong.

        Parameters
        ----------
        reason
            Why there is nothing more.
        counts
            How many frames of each item there were, and how many were dropped, where that is known.
        """
        videos = [item.video for item in self._items.values() if item.video]
        callbacks = [item.callback for item in self._items.values() if item.callback]
        errors = []
        for part in (*videos, *callbacks, self._table, self._board):
            if part is not None and (error := _tried(part.close)):
                errors.append(error)
        for last in (lambda: self._write_report(reason, counts, errors), self._write_page, self._convert_table):
            if error := _tried(last):
                errors.append(error)
        return errors

    def _take_item(self, message: dict[str, Any]) -> None:
        callback = Callback(message["callback"]) if message["callback"] else None
        is_filmed = bool(message["video"] and self.settings["videos"])
        self._items[message["item"]] = Sunk(
            message["item"], message["name"], message["kind"], message["view"], is_filmed, callback
        )

    def _take_frame(self, message: dict[str, Any]) -> None:
        shape = message["shape"]
        values = self._ring.read(message["slot"], int(np.prod(shape, dtype=int))).reshape(shape)
        self._ring.release()
        item = self._items[message["item"]]
        if item.callback:
            item.callback(item.name, message["step"], values)
        if item.is_filmed:
            self._film(item, values, message)
        item.frames += 1

    def _take_rows(self, message: dict[str, Any]) -> None:
        count, width = message["rows"], message["width"]
        flat = self._ring.read(message["slot"], 2 * count * width)
        self._ring.release()
        rows = flat.view(np.float64).reshape(count, width).tolist()
        if self._table:
            self._table.write([(self._items[int(row[0])].name, self._items[int(row[0])].kind, row[1:]) for row in rows])
        if self._board:
            self._board.write([(self._items[int(row[0])].name, row[1:]) for row in rows])

    def _film(self, item: Sunk, values: np.ndarray[Any, Any], message: dict[str, Any]) -> None:
        if item.painter is None or item.video is None:
            from pytest_torchlens.recorder.worker.painter import Painter
            from pytest_torchlens.recorder.worker.video import new_video

            item.painter = Painter(item.name, item.kind, item.view, tuple(self.settings["size"]))
            item.video = new_video(self.folder / file_stem(item.number, item.name), self.settings)
        item.video.add(item.painter.paint(values, message))

    def _new_board(self) -> Board:
        from pytest_torchlens.recorder.worker.tables import Board

        return Board(self.folder / "tensorboard")

    def _write_report(self, reason: str, counts: dict[str, tuple[int, int]], errors: list[Exception]) -> None:
        items = [
            {
                "item": item.number,
                "name": item.name,
                "kind": item.kind,
                "frames": item.frames,
                "dropped": counts.get(str(item.number), (0, 0))[1],
                "files": [path.name for path in item.video.paths] if item.video else [],
            }
            for item in self._items.values()
        ]
        report = {
            "title": self.settings["title"],
            "ended": reason,
            "errors": [str(error) for error in errors],
            "items": items,
        }
        write_atomically(self.folder / f"recording-{self.settings['number']}.json", json.dumps(report, indent=1))

    def _convert_table(self) -> None:
        if self._is_first and self.settings["series"] == "parquet":
            from pytest_torchlens.recorder.worker.tables import to_parquet

            to_parquet(self.folder / "series.csv")

    def _write_page(self) -> None:
        if self._is_first and self.settings["page"]:
            from pytest_torchlens.recorder.worker.page import write_page

            write_page(self.folder)


def _tried(action: Any) -> Exception | None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - one file that fails must not cost the others
        return error
    return None
