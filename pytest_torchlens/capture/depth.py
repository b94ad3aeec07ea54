"""Room on Python's stack for our own frames, so that a model may nest as deep as it may without them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_recordings = 0
_former = _raised = 0
_GREATEST = 2**31 - 1


@contextlib.contextmanager
def deeper() -> Iterator[None]:
    """Raise the recursion limit for a while; where the model sets one of its own, that stays."""
    global _recordings, _former, _raised  # noqa: PLW0603 - the limit is the process's
    with _lock:
        _recordings += 1
        if _recordings == 1:
            _former = sys.getrecursionlimit()
            _raised = min(2 * _former + _FRAMES_OF_A_CALL, _GREATEST)
            sys.setrecursionlimit(_raised)
    try:
        yield
    finally:
        with _lock:
            _recordings -= 1
            if not _recordings and sys.getrecursionlimit() == _raised:
                sys.setrecursionlimit(_former)


_FRAMES_OF_A_CALL = 200  # of ours, at most, around one function of torch; a module call has two
