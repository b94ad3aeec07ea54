"""Holds what differs between two runs of one model, in words and in numbers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from dataclasses import field

from pytest_torchlens.records.operation import SourcePlace
from pytest_torchlens.records.operation import WithSourcePlace


class Change(str, enum.Enum):
    """Words for a model, or one of its operations, against its baseline."""

    IDENTICAL = "identical"
    DRIFT = "drift"
    """Numbers differ within tolerance, on another machine or without a known cause."""
    LOCAL_CHANGE = "local-change"
    """An operation computes other numbers from equal inputs, within tolerance: its kernel changed."""
    REGRESSION = "regression"
    """An operation's own error is beyond tolerance."""
    PROPAGATED = "propagated"
    """The difference came from an earlier operation."""
    DECISION_FLIP = "decision-flip"
    """A choice between nearly equal values went the other way."""
    NAN_CHANGE = "nan-change"
    """Values became NaN or infinite, or no longer are."""
    META_CHANGE = "meta-change"
    """Another shape, dtype, stride or alias."""
    STRUCTURE = "structure"
    """Operations added, removed, replaced or renamed, or other arguments."""
    REFACTOR = "refactor"
    """Operations moved, renamed, or replaced by others, and the outputs are those of the baseline."""
    INPUTS_DIFFER = "inputs-differ"
    """Weights or inputs differ, so the numbers cannot be judged."""
    UNSTABLE = "unstable"
    """The operation gives other numbers when it is repeated, as it did in the baseline's run."""
    NEWLY_UNSTABLE = "newly-unstable"
    """The operation gives other numbers when it is repeated, and gave the same ones in the baseline's run."""
    ENVIRONMENT = "environment"
    """The baseline has no numbers for this kind of machine."""
    LARGER = "larger"
    SLOWER = "slower"
    NEW = "new"
    """There is no baseline."""
    UNUSED = "unused"
    """The baseline's model no longer exists."""


UNRESOLVED = (2.0**-23, 2.0**-45)
"""Relative differences that a baseline cannot resolve, of all dtypes and of float64: such an error may be smaller."""


def size_text(error: float) -> str:
    """Return an error in words: ``"1.3e-05"``, or ``"at most 1.2e-07"`` for what a baseline cannot resolve."""
    return f"{'at most ' if error in UNRESOLVED else ''}{error:.2g}"


class Exactness(str, enum.Enum):
    """Words for an operation's result against that of the same operation in float64."""

    MORE = "more exact"
    LESS = "less exact"
    AS = "as exact"
    UNKNOWN = "unknown"
    """There is no result in float64 to compare with."""


@dataclass(frozen=True, kw_only=True)
class RerunResult:
    """An operation that ran again alone, on the baseline's inputs: a difference is then its own.

    Attributes
    ----------
    error
        As `Finding.error`, computed from the whole results.
    nrms
        As `Finding.nrms`.
    same
        Whether its result equals the baseline's, bit for bit.
    holes
        Whether other elements are NaN or infinite.
    steady
        Whether it gave the same result when it ran once more.
    before
        Root mean square distance of the baseline's result from the result in float64, relative to the values; None if
        there is none in float64.
    after
        The same for the new result.
    exactness
        Whether the new result is nearer to float64.
    reason
        Why it did not run; empty if it ran.
    """

    error: float = 0.0
    nrms: float = 0.0
    same: bool = False
    holes: bool = False
    steady: bool = True
    before: float | None = None
    after: float | None = None
    exactness: Exactness = Exactness.UNKNOWN
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding(WithSourcePlace):
    """One difference, at the place where it begins.

    Attributes
    ----------
    change
        The class of change.
    operation
        Stable id of the operation: ``"layer1.0.conv1/conv2d"``; empty if it concerns the model.
    message
        The old and the new value, in words.
    source_line
        ``file:line, in function`` of the model's code; empty if this run does not know it.
    source_place
        That line as file, line and function.
    error
        Largest difference relative to the largest value; None if it was not measured.
    nrms
        Root mean square of the difference, relative to the root mean square of the values.
    limit
        The largest `error` that is allowed.
    alone
        The operation's own result on the baseline's inputs, if these are saved; `error` and `nrms` are then its own.
    """

    change: Change
    operation: str = ""
    message: str = ""
    source_line: str = ""
    source_place: SourcePlace | None = field(default=None, compare=False)
    error: float | None = None
    nrms: float | None = None
    limit: float | None = None
    alone: RerunResult | None = None


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The size of a difference at one operation on its way to the output."""

    operation: str
    error: float
    nrms: float


@dataclass(frozen=True, kw_only=True)
class OutputsComparison:
    """A model's outputs against the baseline's, whatever differs on the way to them.

    Attributes
    ----------
    same
        Whether all are equal, bit for bit.
    within
        Whether all are equal or within tolerance.
    operation
        Id of the output that differs most; empty if the returned objects cannot be compared.
    error, nrms, limit
        As those of `Finding`, of that output; None if they were not measured.
    reason
        What differs besides numbers, or why nothing could be compared; empty otherwise.
    """

    same: bool = False
    within: bool = False
    operation: str = ""
    error: float | None = None
    nrms: float | None = None
    limit: float | None = None
    reason: str = ""

    @property
    def words(self) -> str:
        """``"identical"``, or by how much they differ, and why they could not be compared."""
        if self.same:
            return "identical"
        if self.error is None or self.nrms is None or self.limit is None:
            return f"differ{': ' if self.reason else ''}{self.reason}"
        size = f"{size_text(self.error)} of the largest value (limit {self.limit:.2g}), RMS {size_text(self.nrms)}"
        also = f"; {self.reason}" if self.reason else ""
        return f"{'within tolerance, differ' if self.within else 'differ'} by {size} at {self.operation}{also}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One model against its baseline.

    Attributes
    ----------
    verdict
        The most serious class found.
    fails
        Whether the conditions fail the model.
    fails_outputs
        Whether they fail it for its outputs, whatever else differs.
    baseline
        The baseline: its file, relative to rootdir.
    axes
        How the environments differ: ``"torch 2.13.0 → 2.14.1"``, ``"CPU capability AVX512 → AVX2"``.
    counts
        Operations by class.
    findings
        The differences where they begin, the most serious first, each kind in execution order; what follows from them
        is only counted.
    growth
        The first difference at a few operations on its way to the output.
    outputs
        The outputs against the baseline's; None if there are no numbers to compare.
    notes
        What was not compared, and why: text for readers, which no code reads back.
    stored
        The baseline file that this run wrote, relative to rootdir; empty if it wrote none.
    untimed
        Why times were not compared although a condition limits them; empty otherwise.
    unsaved
        Why activations were not saved although the run asked for them; empty otherwise.
    unwritten
        Why this run's result does not wait to be accepted: its file could not be written; empty otherwise.
    other_files
        Whether the model's code is in other files than its baseline names, though nothing else differs.
    against
        The interpreter whose run on this machine took the place of a stored baseline; empty for a stored baseline.
    """

    verdict: Change
    fails: bool = False
    fails_outputs: bool = False
    baseline: str = ""
    axes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    growth: tuple[Growth, ...] = ()
    outputs: OutputsComparison | None = None
    notes: tuple[str, ...] = ()
    stored: str = ""
    untimed: str = ""
    unsaved: str = ""
    unwritten: str = ""
    other_files: bool = False
    against: str = ""

    @property
    def first(self) -> Finding | None:
        """The finding to look at first."""
        return self.findings[0] if self.findings else None
