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


def _deeper(limit: int) -> int:
    return min(_DEPTH_FACTOR * limit + _FRAMES_OF_A_CALL, _LARGEST_LIMIT)


def _rarer(threshold: tuple[int, ...]) -> tuple[int, ...]:
    """Return the threshold for our objects beside the model's; 0 means that nothing is collected."""
    youngest, *older = threshold
    return (max(youngest, _OBJECTS) if youngest else 0, *older)


_FRAMES_OF_A_CALL = 200  # at most, of our own frames around one torch function
_DEPTH_FACTOR = 3  # a module call takes three PyTorch frames, and we add at most four
_LARGEST_LIMIT = 2**31 - 1
_OBJECTS = 20_000  # of about 2,000 recorded operations, which hold none of the model's garbage
RECURSION = RaisedLimit(sys.getrecursionlimit, sys.setrecursionlimit, _deeper)
"""So that a model can nest as deeply as without our frames."""
GARBAGE = RaisedLimit(gc.get_threshold, lambda threshold: gc.set_threshold(*threshold), _rarer)
"""So that garbage is not collected more often because of the objects that a recording keeps."""
