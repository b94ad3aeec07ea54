"""What an audit found: what looks wrong, or costs more than it need, in a model that runs."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(str, enum.Enum):
    """How much a finding matters; none fails a test by itself."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, kw_only=True)
class AuditPlace:
    """One place that a finding is about."""

    operation: str = ""
    """Label of the operation; empty where it is about a module or a parameter."""
    module: str = ""
    """Module call that the operation ran in, or address of the module or parameter; empty for the model itself."""
    source_line: str = ""
    """``file:line, in function``; empty where it is not known."""
    detail: str = ""
    """What is so there, in numbers."""


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """One rule that a model does not keep, and where."""

    rule: str
    """Its name, which stays: ``"not-a-number"``."""
    severity: Severity
    title: str
    """What is so, in a few words."""
    meaning: str = ""
    """What that means."""
    advice: str = ""
    """What to do about it."""
    places: tuple[AuditPlace, ...] = ()
    """Where; of many the first, in the order of the pass."""
    num_places: int = 0
    """At how many places in all."""
