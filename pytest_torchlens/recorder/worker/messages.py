"""What the process that records says, read by a thread of its own: its end is noticed whatever is going on here."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from collections.abc import Iterator

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
