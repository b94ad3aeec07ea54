"""When a step begins and ends, and which steps are recorded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchlens.recorder.recorder_options import RecorderOptions


class Clock:
    """Counts steps; the first is 0.

    Attributes
    ----------
    step : int
        The step that is going on.
    is_recorded : bool
        Whether it is recorded: by its number, by time, and by `Recorder.enabled`.
    """

    def __init__(self, options: RecorderOptions) -> None:
        self._options = options
        self._last = float("-inf")
        self.enabled = True
        self.step = 0
        self.is_recorded = self._decide()

    def advance(self) -> None:
        """Begin the next step."""
        self.step += 1
        self.is_recorded = self._decide()

    def _decide(self) -> bool:
        options = self._options
        if not self.enabled or self.step < options.start or (self.step - options.start) % options.every:
            return False
        if options.until is not None and self.step >= options.until:
            return False
        now = time.monotonic()
        if options.per_second and now - self._last < 1 / options.per_second:
            return False
        self._last = now
        return True
