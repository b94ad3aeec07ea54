"""Shows the stage of the running model, and estimates how long the run still takes."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from contextlib import nullcontext
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest
    from typing_extensions import Self

    from pytest_torchlens.records import Stage


MINUTE, HOUR = 60, 3600


class Estimate:
    """Time left, from what the models took in the last run and what those took that have ended in this one.

    Parameters
    ----------
    costs
        Seconds that each model of the run is expected to take, by node id.
    workers
        How many run at a time.
    """

    def __init__(self, costs: Mapping[str, float], workers: int = 1) -> None:
        self._left = dict(costs)
        self._total = len(costs)
        self._workers = workers
        self._expected = self._taken = 0.0

    @property
    def nodeids(self) -> set[str]:
        """Models that have not ended."""
        return set(self._left)

    def end(self, nodeid: str, seconds: float) -> None:
        """Note that a model has ended, and what it took."""
        if nodeid in self._left:
            self._expected += self._left.pop(nodeid)
            self._taken += seconds

    def __str__(self) -> str:
        """Say it: ``"12 of 300, about 4 min left"``."""
        place = f"{self._total - len(self._left)} of {self._total}"
        if not self._expected or not self._left:
            return place
        left = sum(self._left.values()) * self._taken / self._expected / self._workers
        return f"{place}, about {_in_words(left)} left"


def _in_words(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"


SAVE, RESTORE, CLEAR = "\x1b7", "\x1b8", "\x1b[K"
LEAST = 12
"""Columns that must be left on the line."""


def _is_terminal(reporter: Any) -> bool:
    """Whether pytest writes to a terminal that can move its cursor."""
    answer = getattr(reporter, "isatty", False)  # a property in pytest 8, a method in 9
    return bool(answer() if callable(answer) else answer) and os.environ.get("TERM") != "dumb"


class Progress:
    """Shows the stage of the running model and its place among all, and takes it away again.

    On a terminal the text stands after what pytest has written and leaves no trace.  In a log with ``-v`` the
    stages stay as words on the item's line.  With ``-q``, in a plain log and in an xdist worker: nothing.
    """

    def __init__(self, config: pytest.Config, name: str, place: str = "") -> None:
        self._name = name
        self._place = f" ({place})" if place else ""
        self._capture = config.pluginmanager.getplugin("capturemanager")
        reporter = config.pluginmanager.getplugin("terminalreporter")
        verbosity = config.get_verbosity()
        self._writer: Any = reporter and config.get_terminal_writer()
        self._transient = verbosity >= 0 and _is_terminal(reporter)
        self._words = bool(reporter and verbosity == 1 and not self._transient)

    def __enter__(self) -> Self:
        if self._words and self._place:
            self._say(self._place.strip())
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._transient:
            self._write("")

    def __call__(self, stage: Stage) -> None:
        """Show that `stage` has begun."""
        if self._transient:
            self._write(f"{self._name}: {stage.value}{self._place}")
        elif self._words:
            self._say(stage.value)

    def show(self, text: str) -> None:
        """Show a text of another kind in the same place; nothing takes it away."""
        if self._transient:
            self._write(text and f"{self._name}: {text}")

    def _say(self, word: str) -> None:
        with self._uncaptured():
            self._writer.write(f"{word} ", flush=True)

    def _write(self, text: str) -> None:
        """Write past pytest's writer, which would count the columns; the cursor ends where it was."""
        room = self._writer.fullwidth - self._writer.width_of_current_line - 2
        shown = self._writer.markup(f" {text[:room]}", light=True) if text and room >= LEAST else ""
        with self._uncaptured():
            self._writer.flush()
            sys.stdout.write(f"{SAVE}{CLEAR}{shown}{RESTORE}")
            sys.stdout.flush()

    def _uncaptured(self) -> AbstractContextManager[None]:
        if self._capture is None:
            return nullcontext()
        disabled: AbstractContextManager[None] = self._capture.global_and_fixture_disabled()
        return disabled
