"""Forks of the process that records, such as workers of a DataLoader: what it holds open is not theirs."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forgets(Protocol):
    """Something that a forked process must let go of."""

    def forget(self) -> None:
        """Be of no more use in this process, which was forked, and hold nothing open."""


_all: weakref.WeakSet[Forgets] = weakref.WeakSet()


def forget_in_forks(thing: Forgets) -> None:
    """Have `forget` called in each process that is forked from now on."""
    _all.add(thing)


def _after_fork() -> None:
    for thing in list(_all):
        thing.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
