"""How long a forward pass took on this machine, kept there alone: another machine's times say nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json

UNTIMED = "times were not compared: none of this machine had been kept; now this run's are"
"""Said where a condition asks for a comparison that cannot be made yet."""
UNTIMED_AGAINST = "times were not compared: of another interpreter's run none is taken"
"""Said where it is never made."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of the fastest plain pass of a model.

    Attributes
    ----------
    machine
        Where they were measured.
    baseline
        When the baseline was stored, or first after that.
    last
        In the last run.
    """

    machine: str
    baseline: float
    last: float

    def __post_init__(self) -> None:
        if not all(0 < seconds < math.inf for seconds in (self.baseline, self.last)):
            raise ValueError(f"no time of a pass: {self}")

    def after(self, machine: str, seconds: float) -> Times:
        """Return them after another run; those of another machine are dropped."""
        same = machine == self.machine
        return Times(machine=machine, baseline=self.baseline if same else seconds, last=seconds)

    def accepted(self) -> Times:
        """Return them as they are when what the last run obtained becomes the baseline."""
        return replace(self, baseline=self.last)


def read_times(path: Path) -> Times | None:
    """Return what a file has; None where there is none that can be used: then it is written anew."""
    try:
        return from_json(path.read_text(encoding="utf-8"), Times)
    except (OSError, ValueError):
        return None


def times_text(times: Times) -> str:
    """Return times as text, which `read_times` reads."""
    return to_json(times) + "\n"
