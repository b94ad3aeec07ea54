"""Receives messages from the training process and passes them to files and callbacks.

A separate thread reads the messages, so that it notices the end of the training process at any time.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from pytest_torchlens.recorder.ring import Ring
from pytest_torchlens.recorder.worker.files import file_stem
from pytest_torchlens.recorder.worker.tables import Table
from pytest_torchlens.records import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from pytest_torchlens.recorder.worker.painter import Painter
    from pytest_torchlens.recorder.worker.tables import Board
    from pytest_torchlens.recorder.worker.video import Video


GRACE = 30.0
"""Seconds within which at least one message must be processed once the training process has ended without a message."""


class Sink:
    """All files of one recorder process.

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
        self._items: dict[int, WorkerItem] = {}
        self._is_first = settings["number"] == 0
        self._table = Table(self.folder / "series.csv") if self._is_first else None
        self._board: Board | None = self._new_board() if self._is_first and settings["tensorboard"] else None

    def take(self, message: dict[str, Any]) -> None:
        """Handle a message."""
        getattr(self, f"_take_{message['do']}")(message)

    def close(self, reason: str, counts: dict[str, tuple[int, int]]) -> list[Exception]:
        """Finish all files, even if some fail; return the errors.

        Parameters
        ----------
        reason
            Why the recording ended.
        counts
            Frames of each item, seen and dropped, where known.
        """
        videos = [item.video for item in self._items.values() if item.video]
        callbacks = [item.callback for item in self._items.values() if item.callback]
        errors = []
        for part in (*videos, *callbacks, self._table, self._board):
            if part is not None and (error := _try(part.close)):
                errors.append(error)
        for last in (lambda: self._write_report(reason, counts, errors), self._write_page, self._convert_table):
            if error := _try(last):
                errors.append(error)
        return errors

    def _take_item(self, message: dict[str, Any]) -> None:
        callback = Callback(message["callback"]) if message["callback"] else None
        is_filmed = bool(message["video"] and self.settings["videos"])
        self._items[message["item"]] = WorkerItem(
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

    def _film(self, item: WorkerItem, values: np.ndarray[Any, Any], message: dict[str, Any]) -> None:
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


@dataclass
class WorkerItem:
    """An item in the recorder process, with its painter, video and callback."""

    number: int
    name: str
    kind: str
    view: str
    is_filmed: bool
    callback: Callback | None
    frames: int = 0
    painter: Painter | None = None
    video: Video | None = None


def _try(action: Any) -> Exception | None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - one file that fails must not cost the others
        return error
    return None


class Callback:
    """The user's callback: a function, or one instance of a class.

    Parameters
    ----------
    where
        Module, name, and the file that the module came from.
    """

    def __init__(self, where: dict[str, str]) -> None:
        target = getattr(_module(where["module"], where["file"]), where["name"])
        self._call = target() if isinstance(target, type) else target

    def __call__(self, name: str, step: int, values: np.ndarray[Any, Any]) -> None:
        """Pass one frame to the callback."""
        self._call(name, step, values)

    def close(self) -> None:
        """Call the callback's `close`, if it has one."""
        if hasattr(self._call, "close"):
            self._call.close()


@functools.cache
def _module(name: str, file: str) -> ModuleType:
    """Import a module by name if that finds the given file; else load the file, which is a test or a script."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        module = None
    if module is not None and (not file or Path(str(module.__file__)).resolve() == Path(file)):
        return module
    # Loaded under another name, so that its `if __name__ == "__main__"` block does not run.
    spec = importlib.util.spec_from_file_location(f"lens_callback_{name}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"the callback's module {name!r} was not found, and {file!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Messages:
    """Messages in the order sent, until the last one or until the sender ends.

    Parameters
    ----------
    source
        File descriptor to read from.

    Attributes
    ----------
    is_stopped : bool
        Whether `stop` was called.
    last : dict or None
        The final message; None if the training process ended without one.
    """

    def __init__(self, source: int) -> None:
        self.last: dict[str, Any] | None = None
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.is_stopped = False
        self._num_handled = 0
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (message := self._queue.get()) is not None and not self.is_stopped:
            yield message
            self._num_handled += 1

    def stop(self) -> None:
        """Stop taking messages."""
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
        """End this process when it makes no progress: a hanging callback must not keep it alive forever."""
        before = -1
        while before != self._num_handled:
            before = self._num_handled
            time.sleep(GRACE)
        os._exit(4)


def _lines(source: int) -> Iterator[bytes]:
    """Yield lines from a file descriptor.  Python's file objects hold a lock while they wait, which blocks exit."""
    rest = b""
    while data := os.read(source, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
