"""Errors in a zoo file or in the user's code that it names, and processes which that code forks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextlib.contextmanager
def forks_end() -> Iterator[None]:
    """End a process that was forked inside the block as it leaves the block, with the status it would end with."""
    own = os.getpid()
    try:
        yield
    except BaseException as error:
        end_if_forked(own, _status(error))
        raise
    end_if_forked(own, 0)


def end_if_forked(own: int, status: int) -> None:
    """End this process, without a word, unless it is the one whose number is `own`."""
    if os.getpid() != own:
        os._exit(status)


def _status(error: BaseException) -> int:
    code = error.code if isinstance(error, SystemExit) else 1
    return code & 0xFF if isinstance(code, int) else int(code is not None)


class ZooError(ValueError):
    """A zoo, a model or a zoo file is wrong; the message says what to do.

    Parameters
    ----------
    reason
        What is wrong.
    place
        File and line, which the message then begins with; empty where none is known.
    """

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason


@contextmanager
def as_zoo_error(what: str) -> Iterator[None]:
    """Turn what code of the user's raises into a `ZooError`: an exit or a skip in it too, which would end the run."""
    try:
        with forks_end():
            yield
    except (ZooError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ZooError(f"{what} {type(error).__name__}: {error}") from error
