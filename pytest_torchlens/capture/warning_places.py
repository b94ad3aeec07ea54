"""Finds the frame that a warning is about, where frames of ours stand between it and the code that warns."""

from __future__ import annotations

import sys
from types import FrameType

import torch.overrides

_PACKAGE = __name__.partition(".")[0]
_HANDLER = torch.overrides.handle_torch_function.__code__


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of this package."""
    name: str = frame.f_globals.get("__name__") or ""
    return name.startswith(f"{_PACKAGE}.")


def caller_past_us(frame: FrameType) -> FrameType | None:
    """Return the frame that would have called this one, perhaps ours, if we were not there."""
    caller = _first_not_ours(frame.f_back)
    if caller is None or caller.f_code is not _HANDLER or (caller is frame.f_back and not is_ours(frame)):
        return caller
    passed_on = _first_not_ours(caller.f_back)  # a function that passed its call on to us, and that we called again
    if passed_on is not None and (passed_on.f_code is frame.f_code or is_ours(frame)):
        return caller_past_us(passed_on)
    return passed_on


def _first_not_ours(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return frame


def level_past_us(level: int, depth: int, prefixes: tuple[str, ...]) -> int:
    """Return the ``stacklevel`` for the caller, to warn as the function `depth` calls above it would without us.

    Parameters
    ----------
    level, prefixes
        ``stacklevel`` and ``skip_file_prefixes`` of that function's warning.
    depth
        How many calls it is above the caller.
    """
    frame = sys._getframe(depth + 1)
    target: FrameType | None = frame
    for _ in range(max(level, 2 if prefixes else 1) - 1):
        target = None if target is None else caller_past_us(target)
        while target is not None and target.f_code.co_filename.startswith(prefixes or ("\0",)):
            target = caller_past_us(target)
    return depth + 1 + _calls_between(frame, target)


def _calls_between(frame: FrameType | None, target: FrameType | None) -> int:
    """Return how many calls `target` is above `frame`; None is above all."""
    count = 0
    while frame is not None and frame is not target:
        frame, count = frame.f_back, count + 1
    return count
