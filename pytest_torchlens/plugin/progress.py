"""Shows the stage of the running model, and estimates the time left."""

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


SAVE, RESTORE, CLEAR = "\x1b7", "\x1b8", "\x1b[K"
LEAST_COLUMNS = 12
"""Columns that the text needs on the line."""


class Progress:
    """Shows the stage of the running model and its position in the run.

    On a terminal the text follows pytest's output and is erased at the end.  In a log with ``-v`` the stages stay as
    words on the item's line.  With ``-q``, in a plain log and in an xdist worker nothing is shown.
    """

    def __init__(self, config: pytest.Config, name: str, place: str = "") -> None:
        self._name = name
        self._place = f" ({place})" if place else ""
        self._capture = config.pluginmanager.getplugin("capturemanager")
        reporter = config.pluginmanager.getplugin("terminalreporter")
        verbosity = config.get_verbosity()
        self._writer: Any = reporter and config.get_terminal_writer()
        self._transient = verbosity >= 0 and _is_terminal(reporter)
        self._writes_words = bool(reporter and verbosity == 1 and not self._transient)

    def __enter__(self) -> Self:
        if self._writes_words and self._place:
            self._say(self._place.strip())
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._transient:
            self._write("")

    def __call__(self, stage: Stage) -> None:
        """Show that `stage` has begun."""
        if self._transient:
            self._write(f"{self._name}: {stage.value}{self._place}")
        elif self._writes_words:
            self._say(stage.value)

    def show(self, text: str) -> None:
        """Show another text in the same place, until the next call."""
        if self._transient:
            self._write(text and f"{self._name}: {text}")

    def _say(self, word: str) -> None:
        with self._capture_disabled():
            self._writer.write(f"{word} ", flush=True)

    def _write(self, text: str) -> None:
        """Write past pytest's writer, which would count the columns, and restore the cursor."""
        room = self._writer.fullwidth - self._writer.width_of_current_line - 2
        text = self._writer.markup(f" {text[:room]}", light=True) if text and room >= LEAST_COLUMNS else ""
        with self._capture_disabled():
            self._writer.flush()
            sys.stdout.write(f"{SAVE}{CLEAR}{text}{RESTORE}")
            sys.stdout.flush()

    def _capture_disabled(self) -> AbstractContextManager[None]:
        if self._capture is None:
            return nullcontext()
        disabled: AbstractContextManager[None] = self._capture.global_and_fixture_disabled()
        return disabled


def _is_terminal(reporter: Any) -> bool:
    """Whether pytest writes to a terminal that can move its cursor."""
    answer = getattr(reporter, "isatty", False)  # a property in pytest 8, a method in 9
    return bool(answer() if callable(answer) else answer) and os.environ.get("TERM") != "dumb"


MINUTE, HOUR = 60, 3600


class Estimate:
    """Time left, from the times of the last run, scaled by the models that have ended in this run.

    Parameters
    ----------
    costs
        Expected seconds of each model of the run, by node id.
    workers
        How many models run at a time.
    """

    def __init__(self, costs: Mapping[str, float], workers: int = 1) -> None:
        self._remaining = dict(costs)
        self._total = len(costs)
        self._workers = workers
        self._expected_seconds = self._seconds = 0.0

    @property
    def nodeids(self) -> set[str]:
        """Node ids of models that have not ended."""
        return set(self._remaining)

    def end(self, nodeid: str, seconds: float) -> None:
        """Note that a model has ended, and its time."""
        if nodeid in self._remaining:
            self._expected_seconds += self._remaining.pop(nodeid)
            self._seconds += seconds

    def __str__(self) -> str:
        """Return the position and time left: ``"12 of 300, about 4 min left"``."""
        place = f"{self._total - len(self._remaining)} of {self._total}"
        if not self._expected_seconds or not self._remaining:
            return place
        left = sum(self._remaining.values()) * self._seconds / self._expected_seconds / self._workers
        return f"{place}, about {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"
