"""Whether as much of a record could be proved as last time."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_torchlens.baseline.snapshot import Measured
from pytest_torchlens.records import Change
from pytest_torchlens.records import Finding
from pytest_torchlens.records import Status

STATUSES = (Status.PASSED.value, Status.PASSED_WITH_TOLERANCE.value, Status.NOT_APPLICABLE.value)
"""Of a part of a validation that did not fail, the best first."""


def weaker(before: Measured, after: Measured) -> Iterator[Finding]:
    """Yield the parts of the validation that passed better in the baseline; only what both had run is compared."""
    for part, old in before.proof.items():
        new = after.proof.get(part, old)
        if STATUSES.index(new) > STATUSES.index(old):
            yield Finding(change=Change.UNSTABLE, message=f"less could be proved: {part} {old} → {new}")
