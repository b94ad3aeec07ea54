"""Raises the recursion limit while a pass is recorded, so that a model can nest as deeply as without our frames."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def raised_recursion_limit() -> Iterator[None]:
    """Raise the recursion limit while recording; a limit that the model sets itself stays."""
    global _recordings, _limit_before, _limit_raised  # noqa: PLW0603 - the limit is the process's
    with _depth_lock:
        _recordings += 1
        if _recordings == 1:
            _limit_before = sys.getrecursionlimit()
            _limit_raised = min(_DEPTH_FACTOR * _limit_before + _FRAMES_OF_A_CALL, _LARGEST_LIMIT)
            sys.setrecursionlimit(_limit_raised)
    try:
        yield
    finally:
        with _depth_lock:
            _recordings -= 1
            if not _recordings and sys.getrecursionlimit() == _limit_raised:
                sys.setrecursionlimit(_limit_before)


_FRAMES_OF_A_CALL = 200  # at most, of our own frames around one torch function
_DEPTH_FACTOR = 3  # a module call takes three PyTorch frames, and we add at most four
_depth_lock = threading.Lock()
_recordings = 0
_limit_before = _limit_raised = 0
_LARGEST_LIMIT = 2**31 - 1
