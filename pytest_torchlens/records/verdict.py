"""Holds what validation and the audit of a model found."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from dataclasses import field
from typing import ClassVar

from pytest_torchlens.records.operation import SourcePlace
from pytest_torchlens.records.operation import WithSourcePlace


class Status(str, enum.Enum):
    """Words for a validation, or one part of it."""

    PASSED = "passed"
    PASSED_WITH_TOLERANCE = "passed-with-tolerance"
    FAILED = "failed"
    NOT_APPLICABLE = "not-applicable"
    NOT_RUN = "not-run"

    @property
    def ok(self) -> bool:
        """Whether a run may go on: anything but ``failed``."""
        return self is not Status.FAILED


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A validation of one model with one input; true when nothing failed."""

    WHOLE: ClassVar = True
    status: Status
    parts: tuple[PartVerdict, ...] = ()
    operations_checked: int = 0
    """Activations that replay compared."""
    edges_checked: int = 0
    """Edges that perturbation tried."""
    seconds: float = 0.0
    """Wall time of the validation."""
    settings: dict[str, str] = field(default_factory=dict)
    """Threads, default dtype, autocast, deterministic algorithms and the like, as they were when forward began."""

    def __bool__(self) -> bool:
        """True when something was checked and nothing failed."""
        return self.status in (Status.PASSED, Status.PASSED_WITH_TOLERANCE)

    @property
    def first_failure(self) -> Failure | None:
        """The failure to look at first."""
        return next((failure for part in self.parts for failure in part.failures), None)

    @property
    def tolerated(self) -> int:
        """How many operations are not deterministic and were equal within tolerance."""
        return sum(part.tolerated for part in self.parts)

    @property
    def words(self) -> str:
        """The verdict in one line: its status, and why or how many."""
        failure = self.first_failure
        if self.status is Status.PASSED_WITH_TOLERANCE:
            return f"{self.status.value} ({self.tolerated} operation{'s' * (self.tolerated != 1)})"
        if self.status is Status.FAILED and failure is not None:
            return f"{self.status.value} ({': '.join(filter(None, (failure.operation, failure.message)))})"
        reasons = dict.fromkeys(part.reason for part in self.parts if part.reason)
        return f"{self.status.value} ({'; '.join(reasons)})" if not self and reasons else self.status.value

    def part(self, name: str) -> PartVerdict:
        """Return the part of that name; `KeyError` names those there are."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(f"expected a part ({', '.join(part.name for part in self.parts)}), got {name!r}")


@dataclass(frozen=True, kw_only=True)
class PartVerdict:
    """One of the parts: ``observer``, ``replay``, ``perturbation``, ``invariants``, ``completeness``."""

    WHOLE: ClassVar = True
    name: str
    status: Status
    checked: int = 0
    """How many things were compared (outputs and state tensors, activations, edges)."""
    unit: str = ""
    """What was counted, plural: ``"activations"``."""
    exempt: dict[str, int] | None = None
    """Named reasons for which a check does not apply, with counts."""
    failures: tuple[Failure, ...] = ()
    """The first ten; the first in execution order stands first."""
    num_failures: int = 0
    """How many things did not hold."""
    reason: str = ""
    """Why it was not run or does not apply."""
    notes: tuple[str, ...] = ()
    """What a reader should know though nothing failed: values handed to Python, results not recorded."""
    unchecked: tuple[str, ...] = ()
    """What the part could not check; ``notes`` has each as well."""
    tolerated: int = 0
    """How many were equal only within tolerance."""


@dataclass(frozen=True, kw_only=True)
class Failure(WithSourcePlace):
    """One thing that did not hold.

    Attributes
    ----------
    operation
        Label of the operation; empty where it concerns the model (its state, its outputs).
    message
        One sentence: what was expected and what was found.
    cause
        The likely cause, where one is known.
    advice
        What to do about it.
    source_line
        ``file:line, in function`` of the model's code.
    source_place
        That line as file, line and function.
    values
        Both values around the first element that differs, where they could be had.
    """

    operation: str = ""
    message: str
    cause: str = ""
    advice: str = ""
    source_line: str = ""
    source_place: SourcePlace | None = field(default=None, compare=False)
    values: str = ""


class Severity(str, enum.Enum):
    """How much a finding matters; none fails a test by itself."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


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
