"""What a recording can fail with."""

from __future__ import annotations


class RecorderError(RuntimeError):
    """The recording itself cannot go on: its process ended, its disk is full, a callback of the user's raised."""


class ExpectationError(AssertionError):
    """Training did what was not expected of it.

    Attributes
    ----------
    step : int
        The step it happened in; the first is 0.
    item : str
        Name of the tensor, as in `Recorder.series`.
    expectation : str
        Its name, as given to `Recorder.expect`.
    value : float
        What was found.
    """

    def __init__(self, message: str, *, step: int, item: str, expectation: str, value: float) -> None:
        super().__init__(message)
        self.step = step
        self.item = item
        self.expectation = expectation
        self.value = value
