"""What was found of the models that somebody's test called."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

from pytest_torchlens.records.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """One outermost call of a module in a test, recorded and validated.

    Attributes
    ----------
    model
        Class name.
    verdict
        None where there is none: `trouble` or `left_off` says why.
    trouble
        The traceback of an error of ours.
    left_off
        The limit that was passed.
    operations
        How many were recorded.
    seconds
        What recording (the call itself included) and validating took.
    """

    model: str
    verdict: Verdict | None = None
    trouble: str = ""
    left_off: str = ""
    operations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TracedTest:
    """What became of the outermost module calls of one test."""

    calls: int = 0
    """How many there were."""
    known: int = 0
    """How many had a structure and inputs that were validated before."""
    passed_over: dict[str, int] = field(default_factory=dict)
    """How many were not recorded, by the reason."""
    found: tuple[TracedCall, ...] = ()
    seconds: float = 0.0
    """What recording and validating took, and what it took to tell which calls are known."""
