"""Holds the results of a model's validation and audit."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from dataclasses import field
from typing import ClassVar

from pytest_torchlens.records.measurements import count_text
from pytest_torchlens.records.operation import SourcePlace
from pytest_torchlens.records.operation import WithSourcePlace


class Status(str, enum.Enum):
    """Words for a validation, or one part of it."""

    PASSED = "passed"
    PASSED_WITH_TOLERANCE = "passed-with-tolerance"
    FAILED = "failed"
    UNPROVEN = "unproven"
    """Nothing wrong was found, and something that the verdict promises could not be shown."""
    NOT_APPLICABLE = "not-applicable"
    NOT_RUN = "not-run"

    @property
    def ok(self) -> bool:
        """Whether it is not ``failed``."""
        return self is not Status.FAILED


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The validation of one model with one input; true if everything was shown and nothing failed."""

    WHOLE: ClassVar = True
    status: Status
    parts: tuple[PartVerdict, ...] = ()
    operations_checked: int = 0
    """Activations that replay compared."""
    edges_checked: int = 0
    """Edges that perturbation tried."""
    seconds: float = 0.0
    """Wall time of the validation."""
    unproven: tuple[Unproven, ...] = ()
    """What could not be shown; with one of them a verdict without failures is `Status.UNPROVEN`."""
    settings: dict[str, str] = field(default_factory=dict)
    """Threads, default dtype, autocast, deterministic algorithms and the like when forward began."""

    def __bool__(self) -> bool:
        """Return whether everything was shown: the status is ``passed`` or ``passed-with-tolerance``."""
        return self.status in (Status.PASSED, Status.PASSED_WITH_TOLERANCE)

    @property
    def failed_parts(self) -> tuple[PartVerdict, ...]:
        """The parts that failed; first completeness, as an operation that was missed explains what else failed."""
        failed = (part for part in self.parts if not part.status.ok)
        return tuple(sorted(failed, key=lambda part: part.name != "completeness"))

    @property
    def first_failure(self) -> Failure | None:
        """The failure to look at first."""
        return next((failure for part in self.failed_parts for failure in part.failures), None)

    @property
    def fault(self) -> tuple[tuple[str, str, str], ...]:
        """Each failed part with the line of its first failure (its message where no line is known) and the cause.

        Calls of one class that fail alike have the same, whatever their shapes.  Empty if no line is known: different
        models have classes of one name, and only a line of their code tells them apart.
        """
        firsts = [(part.name, part.failures[0]) for part in self.failed_parts if part.failures]
        if not any(first.source_line for _, first in firsts):
            return ()
        return tuple((name, first.source_line or first.message, first.cause) for name, first in firsts)

    @property
    def tolerated(self) -> int:
        """Number of nondeterministic operations that were equal within tolerance."""
        return sum(part.tolerated for part in self.parts)

    @property
    def words(self) -> str:
        """The verdict in one line: its status with the reason or a count."""
        failure = self.first_failure
        if self.status is Status.PASSED_WITH_TOLERANCE:
            return f"{self.status.value} ({self.tolerated} operation{'s' * (self.tolerated != 1)})"
        if self.status is Status.FAILED and failure is not None:
            return f"{self.status.value} ({': '.join(filter(None, (failure.operation, failure.message)))})"
        reasons = dict.fromkeys(one.words for one in self.unproven) or dict.fromkeys(
            part.reason for part in self.parts if part.reason
        )
        return f"{self.status.value} ({'; '.join(reasons)})" if not self and reasons else self.status.value

    def part(self, name: str) -> PartVerdict:
        """Return the part of that name; `KeyError` lists the names."""
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
    """Number of things compared (outputs and state tensors, activations, edges)."""
    unit: str = ""
    """Plural noun for these things: ``"activations"``."""
    exempt: dict[str, int] | None = None
    """Reasons why a check does not apply, with counts."""
    failures: tuple[Failure, ...] = ()
    """The first ten; the first in execution order stands first."""
    num_failures: int = 0
    """Number of failures."""
    reason: str = ""
    """Why it did not run or does not apply."""
    notes: tuple[str, ...] = ()
    """Remarks that are not failures: values that Python read, results that were not recorded."""
    unchecked: tuple[str, ...] = ()
    """Things that the part could not check; ``notes`` has them too."""
    tolerated: int = 0
    """Number of things that were equal only within tolerance."""


@dataclass(frozen=True, kw_only=True)
class Failure(WithSourcePlace):
    """One failed check.

    Attributes
    ----------
    operation
        Label of the operation; empty if the failure concerns the model (its state, its outputs).
    message
        One sentence: the expected and the actual result.
    cause
        The likely cause, if known.
    advice
        What to do about it.
    source_line
        ``file:line, in function`` of the model's code.
    source_place
        That line as file, line and function.
    values
        Both values around the first element that differs, if known.
    """

    operation: str = ""
    message: str
    cause: str = ""
    advice: str = ""
    source_line: str = ""
    source_place: SourcePlace | None = field(default=None, compare=False)
    values: str = ""


@dataclass(frozen=True, kw_only=True)
class Unproven(WithSourcePlace):
    """One thing that a verdict promises and that could not be shown.

    Attributes
    ----------
    message
        What could not be shown, and why, in one sentence.
    operation
        Label of the operation; empty where it concerns the model.
    source_line
        ``file:line, in function`` of the model's code; empty if it is not known.
    source_place
        That line as file, line and function.
    """

    message: str
    operation: str = ""
    source_line: str = ""
    source_place: SourcePlace | None = field(default=None, compare=False)

    @property
    def words(self) -> str:
        """Return operation, message and line in one line."""
        where = f" at {self.source_line}" if self.source_line else ""
        return f"{self.operation}: {self.message}{where}" if self.operation else f"{self.message}{where}"


class Severity(str, enum.Enum):
    """How severe a finding is; no finding fails a test by itself."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """One rule that a model breaks, and where."""

    rule: str
    """The rule's name, which never changes: ``"not-a-number"``."""
    severity: Severity
    title: str
    """The fault in a few words."""
    meaning: str = ""
    """What the fault leads to."""
    advice: str = ""
    """What to do about it."""
    places: tuple[AuditPlace, ...] = ()
    """The first places, in the order of the pass."""
    num_places: int = 0
    """Total number of places."""

    @property
    def words(self) -> str:
        """The finding in one line, with its first place if known."""
        first = next(iter(self.places), None)
        parts = (first.operation or first.module, first.source_line, first.detail) if first else ()
        where = f": {', '.join(filter(None, parts))}" if first else ""
        return f"{self.title}, at {count_text(self.num_places, 'place')}{where}"


@dataclass(frozen=True, kw_only=True)
class AuditPlace:
    """One place of a finding."""

    operation: str = ""
    """Label of the operation; empty if the place is a module or a parameter."""
    module: str = ""
    """Module call that the operation ran in, or address of the module or parameter; empty for the model itself."""
    source_line: str = ""
    """``file:line, in function``; empty if it is not known."""
    detail: str = ""
    """What the rule found there, in numbers."""
