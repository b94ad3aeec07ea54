"""Errors in a zoo file or in the user's code that it names, and processes that this code forks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager


class ZooError(ValueError):
    """A zoo, a model or a zoo file is wrong; the message says what to do.

    Parameters
    ----------
    reason
        What is wrong.
    place
        File, or file and line, with which the message begins; empty where unknown.

    Attributes
    ----------
    reason
        The message without the place.
    """

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason


@contextmanager
def as_zoo_error(what: str) -> Iterator[None]:
    """Turn what the user's code raises into a `ZooError`, including an exit or a skip, which would end the run."""
    try:
        with end_forks():
            yield
    except (ZooError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ZooError(f"{what} {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def end_forks() -> Iterator[None]:
    """End a process forked inside the block when it leaves the block, with the exit status that it would have had."""
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        exit_if_forked(pid, _status(error))
        raise
    exit_if_forked(pid, 0)


def exit_if_forked(pid: int, status: int) -> None:
    """End this process silently, unless its process id is `pid`."""
    if os.getpid() != pid:
        os._exit(status)


def _status(error: BaseException) -> int:
    code = error.code if isinstance(error, SystemExit) else 1
    return code & 0xFF if isinstance(code, int) else int(code is not None)
