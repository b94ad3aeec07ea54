"""Python threads from before a forward pass: whether one of them was at work during it, out of sight."""

from __future__ import annotations

import threading
import time


class OtherThreads:
    """All threads but this one, with the processor time that each had used at one moment.

    A thread that waits uses none at all, so that any use means work.  Where the system does not tell (macOS,
    Windows), a thread counts as at work as soon as it is there.
    """

    def __init__(self) -> None:
        self._before = {thread: _time_used(thread) for thread in _others()}

    def at_work(self) -> list[str]:
        """Return the names of those that have used some since, or that are gone."""
        pairs = ((thread, before, _time_used(thread)) for thread, before in self._before.items())
        return [thread.name for thread, before, now in pairs if before is None or now is None or now > before]


def _others() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread is not threading.current_thread()]


def _time_used(thread: threading.Thread) -> int | None:
    """Return nanoseconds of processor time; None where they cannot be had."""
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return None
    try:
        return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
    except OSError:
        return None
