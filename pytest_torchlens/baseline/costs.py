"""Compares a model's costs with those of its baseline: exact sizes, and the time on one machine.

Times are stored only on the machine that measured them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.records import Change
from pytest_torchlens.records import Finding
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json

UNTIMED = "times not compared: no earlier time from this machine; this run's time was stored"
"""Reported if a condition limits the time and there is nothing to compare with yet."""
UNTIMED_AGAINST = "times not compared: the other interpreter's run is not timed"
"""Reported if a condition limits the time of a run against another interpreter."""


@dataclass(frozen=True, kw_only=True)
class StoredTimes:
    """Seconds of the fastest plain pass of a model.

    Attributes
    ----------
    machine
        The machine that measured them.
    baseline
        Of the run that stored the baseline, or of the first run after it.
    last
        Of the last run.
    """

    machine: str
    baseline: float
    last: float

    def __post_init__(self) -> None:
        if not all(0 < seconds < math.inf for seconds in (self.baseline, self.last)):
            raise ValueError(f"expected seconds above 0, got {self}")

    def after(self, machine: str, seconds: float) -> StoredTimes:
        """Return the times after another run; a time of another machine is dropped."""
        same = machine == self.machine
        return StoredTimes(machine=machine, baseline=self.baseline if same else seconds, last=seconds)

    def as_baseline(self) -> StoredTimes:
        """Return the times after the last run has become the baseline."""
        return replace(self, baseline=self.last)


def read_times(path: Path) -> StoredTimes | None:
    """Return the times in a file; None if it is missing or damaged, and must be rewritten."""
    try:
        return from_json(path.read_text(encoding="utf-8"), StoredTimes)
    except (OSError, ValueError):
        return None


def times_text(times: StoredTimes) -> str:
    """Return times as text for `read_times`."""
    return to_json(times) + "\n"


_TOTALS = {"flops": "flops", "operations": "operations", "parameters": "parameters", "peak": "peak_bytes"}
"""By a cost's name in conditions: the name of the total, which is compared exactly."""


def cost_findings(
    before: Snapshot, after: Snapshot, conditions: Conditions, seconds: tuple[float, float] | None
) -> dict[str, Finding]:
    """Return a finding for each cost that grew more than allowed, by the cost's name in conditions.

    Parameters
    ----------
    before, after
        A total is compared if both have it.
    conditions
        By how much a cost may grow.  Without a condition sizes may not grow, and time may.
    seconds
        Of the fastest pass then and now, on one machine; None if the two cannot be compared.
    """
    found = dict(_larger(before.totals, after.totals, conditions))
    allowed = conditions.cost("time")
    if seconds is not None and allowed is not None and seconds[1] > seconds[0] * (1 + allowed):
        then, now = (f"{1e3 * time:.3g} ms" for time in seconds)
        message = f"the fastest pass took {then} and takes {now} on this machine ({_share(*seconds)})"
        found["time"] = Finding(change=Change.SLOWER, message=message)
    return found


def _larger(before: dict[str, int], after: dict[str, int], conditions: Conditions) -> Iterator[tuple[str, Finding]]:
    for cost, name in _TOTALS.items():
        old, new = before.get(name), after.get(name)
        if old is not None and new is not None and new > old * (1 + (conditions.cost(cost) or 0.0)):
            message = f"{name.replace('_', ' ')} {old:,} → {new:,} ({_share(old, new)})"
            yield cost, Finding(change=Change.LARGER, message=message)


def _share(old: float, new: float) -> str:
    return f"{100 * (new - old) / old:+.3g} %" if old else "there were none"
