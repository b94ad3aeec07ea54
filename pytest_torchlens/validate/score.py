"""Counts what one part of a validation checked and what failed."""

from __future__ import annotations

from typing import Protocol

from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.records import Status

_MOST_FAILURES = 10


class Where(Protocol):
    """Gives the label and source line of a call."""

    def label(self, number: int) -> str:
        """Return the label of the first operation of call `number`."""

    def source_place(self, number: int) -> SourcePlace | None:
        """Return the model's line that made call `number`."""


class Score:
    """Counts what one part of a validation checked, and stores the first failures."""

    def __init__(self, name: str, unit: str) -> None:
        self.name = name
        self.unit = unit
        self.checked = 0
        self.failed = 0
        self.tolerated = 0
        self._failures: list[Failure] = []

    def fail(self, failure: Failure) -> None:
        """Count a failure, and store it if it is among the first ten."""
        self.failed += 1
        if len(self._failures) < _MOST_FAILURES:
            self._failures.append(failure)

    def verdict(self, exempt: dict[str, int] | None = None) -> PartVerdict:
        """Return the part's verdict."""
        passed = Status.PASSED_WITH_TOLERANCE if self.tolerated else Status.PASSED
        return PartVerdict(
            name=self.name,
            status=Status.FAILED if self.failed else passed,
            tolerated=self.tolerated,
            checked=self.checked,
            unit=self.unit,
            exempt=exempt,
            failures=tuple(self._failures),
            num_failures=self.failed,
        )


def in_short(error: Exception) -> str:
    """Return type and first line of an exception's text."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
