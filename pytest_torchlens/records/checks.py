"""Holds the results of ``--lens-checks``: whether a model computes the same when it is run another way."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from pytest_torchlens.records.verdict import Failure


class CheckStatus(str, enum.Enum):
    """The result of one check."""

    PASSED = "passed"
    FAILED = "failed"
    TIE = "tie"
    """A choice (an argmax, a route) fell the other way on a gap below the explained error; with the same choice the
    outputs agree."""
    NOT_APPLICABLE = "not-applicable"
    ERROR = "error"
    """The check itself went wrong: it raised, or returned what cannot be."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check of one model."""

    WHOLE: ClassVar = True
    name: str
    """The check's name: ``"rows"``."""
    status: CheckStatus
    failure: Failure | None = None
    """What broke, where, and what to do; null for ``passed`` and ``not-applicable``."""
    reason: str = ""
    """Why the check is not applicable."""
    compared: int = 0
    """Number of things compared; a check that passed has compared one at least."""
    unit: str = "outputs"
    """Plural noun for these things."""
    error: float | None = None
    """RMS error of the run that came worst, against float64; null if nothing was compared within a tolerance."""
    reference_error: float | None = None
    """RMS error of the plain run, in the same place."""
    limit: float | None = None
    """The error that is explained: k times ``reference_error``, and a floor."""
    redrawn: bool = False
    """Whether a copy of the model with weights drawn anew was checked, as the output hardly depended on the input."""
    unseen: tuple[str, ...] = ()
    """What the check could not look at."""
    notes: tuple[str, ...] = ()
    """Remarks, such as what was counted."""
    seconds: float = 0.0
    """Wall time."""
    xfail: str = ""
    """Why it is expected to fail; empty if it is not."""

    @property
    def amount(self) -> str:
        """What was compared, as a text: ``1 output``."""
        is_one = self.compared == 1 and " " not in self.unit
        return f"{self.compared:,} {self.unit.removesuffix('s') if is_one else self.unit}"

    @property
    def went_wrong(self) -> bool:
        """Whether the check failed or raised, expected or not."""
        return self.status in (CheckStatus.FAILED, CheckStatus.ERROR)

    @property
    def fails(self) -> bool:
        """Whether it fails the model: an unexpected failure, an error, or a pass where a failure is expected."""
        if self.status is CheckStatus.ERROR:
            return True
        return self.status is (CheckStatus.PASSED if self.xfail else CheckStatus.FAILED)

    @property
    def word(self) -> str:
        """The status as pytest would call it: ``"passed"``, ``"xfailed"``, ``"tie"``."""
        expected = {CheckStatus.PASSED: "xpassed", CheckStatus.FAILED: "xfailed"} if self.xfail else {}
        return expected.get(self.status, self.status.value)

    @property
    def operation(self) -> str:
        """Label of the first operation that differs; empty if unknown."""
        return self.failure.operation if self.failure else ""

    @property
    def words(self) -> str:
        """The result in one line: the status, and the failure or the reason."""
        what = self.failure.message if self.failure else self.reason
        if self.word == "xpassed":
            what = f"expected to fail: {self.xfail}"
        place = f" at {self.operation}" if self.operation else ""
        counted = f", {self.amount}" if self.compared and not self.failure else ""
        anew = ", weights drawn anew" if self.redrawn else ""
        return f"{self.word}{place}{counted}{anew}" + (f": {what}" if what else "")


def count_checks(results: Iterable[CheckResult]) -> dict[str, int]:
    """Return the number of results by word, failures first."""
    counts = Counter(result.word for result in results)
    return dict(sorted(counts.items(), key=lambda item: (item[0] not in _FIRST, item[0])))


_FIRST = ("failed", "error", "xpassed")


def checks_text(results: Iterable[CheckResult]) -> str:
    """Return the counts, with the names of what is not passed: ``"3 passed, 1 failed (rows)"``; empty without any."""
    every = list(results)
    parts = []
    for word, count in count_checks(every).items():
        names = ", ".join(result.name for result in every if result.word == word)
        parts.append(f"{count} {word}" + (f" ({names})" if word not in _QUIET else ""))
    return ", ".join(parts)


_QUIET = ("passed", "not-applicable")
