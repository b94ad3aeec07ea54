"""What a model costs against what it did: exact sizes, and the time of one machine."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.records import Change
from pytest_torchlens.records import Finding

_TOTALS = {"flops": "flops", "operations": "operations", "parameters": "parameters", "peak": "peak_bytes"}
"""Names of costs in conditions, and of the totals that are compared exactly."""


def grown(
    before: Snapshot, after: Snapshot, conditions: Conditions, seconds: tuple[float, float] | None
) -> dict[str, Finding]:
    """Return what a model costs more than it may, by the cost's name in conditions.

    Parameters
    ----------
    before, after
        Their totals are compared where both have them.
    conditions
        By how much a cost may grow; sizes by nothing if that is not said, time by anything.
    seconds
        Of the fastest pass then and now, on one machine; None where the two cannot be compared.
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
