"""Raises limits of the process while passes are recorded: what we add must not make a model meet them earlier."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any


class RaisedLimit:
    """A limit that is raised while any thread records; one that the model sets itself stays.

    Parameters
    ----------
    read, write
        Return and set the limit.
    higher
        Returns the limit to set, from the one in force.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object], higher: Callable[[Any], Any]) -> None:
        self._read, self._write, self._higher = read, write, higher
        self._lock = threading.Lock()
        self._recordings = 0
        self._before: Any = None
        self._during: Any = None

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the limit in the block."""
        with self._lock:
            self._recordings += 1
            if self._recordings == 1:
                self._before = self._read()
                self._during = self._higher(self._before)
                self._write(self._during)
        try:
            yield
        finally:
            with self._lock:
                self._recordings -= 1
                if not self._recordings and self._read() == self._during:
                    self._write(self._before)

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """Set the former limit in the block, which runs the user's code; what that sets stays."""
        with self._lock:
            is_raised = self._recordings > 0 and self._read() == self._during
            if is_raised:
                self._write(self._before)
        try:
            yield
        finally:
            with self._lock:
                if is_raised and self._recordings:  # another thread may have raised it, and be done
                    self._before = self._read()
                    self._write(self._during)


def _deeper(limit: int) -> int:
    return min(_DEPTH_FACTOR * limit + _FRAMES_OF_A_CALL, _LARGEST_LIMIT)


def _rarer(threshold: tuple[int, ...]) -> tuple[int, ...]:
    """Return the threshold for our objects beside the model's; 0 means that nothing is collected.

    What a validation has made before counts too, and holds no garbage of the model's.
    """
    youngest, *older = threshold
    return (max(youngest, gc.get_count()[0] + _OBJECTS) if youngest else 0, *older)


def _switch_collector(on: bool) -> None:
    (gc.enable if on else gc.disable)()


_FRAMES_OF_A_CALL = 200  # at most, of our own frames around one torch function
_DEPTH_FACTOR = 3  # a module call takes three PyTorch frames, and we add at most four
_LARGEST_LIMIT = 2**31 - 1
_OBJECTS = 20_000  # of about 2,000 recorded operations, which hold none of the model's garbage
RECURSION = RaisedLimit(sys.getrecursionlimit, sys.setrecursionlimit, _deeper)
"""So that a model can nest as deeply as without our frames."""
GARBAGE = RaisedLimit(gc.get_threshold, lambda threshold: gc.set_threshold(*threshold), _rarer)
"""So that garbage is not collected more often because of the objects that a recording keeps."""
COLLECTOR = RaisedLimit(gc.isenabled, _switch_collector, lambda _: False)
"""So that garbage is not collected in the middle of our own work, which makes many small objects, and no cycles."""


@contextlib.contextmanager
def collecting_users_garbage() -> Iterator[None]:
    """Collect garbage in the block, which runs the user's code, as while a pass is recorded."""
    with GARBAGE.raised(), COLLECTOR.put_back():
        yield
