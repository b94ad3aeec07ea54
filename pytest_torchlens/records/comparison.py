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
    """Numbers differ within tolerance, on another machine or with nothing to lay it to."""
    LOCAL_CHANGE = "local-change"
    """From equal inputs an operation computes other numbers, within tolerance: its kernel changed."""
    REGRESSION = "regression"
    """An operation's own error is beyond tolerance."""
    PROPAGATED = "propagated"
    """The difference came from an earlier operation."""
    DECISION_FLIP = "decision-flip"
    """A choice between nearly equal values went the other way."""
    NAN_CHANGE = "nan-change"
    """NaN or infinite where there was none, or no longer."""
    META_CHANGE = "meta-change"
    """Another shape, dtype, stride or alias."""
    STRUCTURE = "structure"
    """Operations added, removed, replaced or renamed, or other arguments."""
    INPUTS_DIFFER = "inputs-differ"
    """Other weights or inputs: nothing can be said of the numbers."""
    UNSTABLE = "unstable"
    """The operation's own repetition gives other numbers."""
    ENVIRONMENT = "environment"
    """The baseline has no numbers for such a machine."""
    LARGER = "larger"
    SLOWER = "slower"
    NEW = "new"
    """There is no baseline."""
    UNUSED = "unused"
    """A baseline of no model that is left."""


class Exactness(str, enum.Enum):
    """Words for an operation's result against that of the same operation in float64."""

    MORE = "more exact"
    LESS = "less exact"
    AS = "as exact"
    UNKNOWN = "unknown"
    """There is no float64 to compare with."""


@dataclass(frozen=True, kw_only=True)
class IsolatedResult:
    """An operation that was run again by itself, on the baseline's inputs: what differs then is its own.

    Attributes
    ----------
    error
        As that of `Finding`, of the results themselves.
    nrms
        As that of `Finding`.
    same
        Whether its result is the baseline's, bit for bit.
    holes
        Whether other places of it are NaN or infinite.
    steady
        Whether, run once more, it gave the same again.
    before
        Root mean square distance of the baseline's result from the same operation in float64, relative to the values;
        None where it has none.
    after
        That of the new result.
    exactness
        Whether the new result is nearer to float64.
    reason
        Why it was not run; empty where it was.
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
    """One thing that differs, where it began.

    Attributes
    ----------
    change
        Its class.
    operation
        Stable id of the operation: ``"layer1.0.conv1/conv2d"``; empty where it concerns the model.
    message
        What was and what is.
    source_line
        ``file:line, in function`` of the model's code, where this run knows it.
    source_place
        That line as file, line and function.
    error
        Largest difference relative to the largest value; None where it was not measured.
    nrms
        Root mean square of the difference, relative to that of the values.
    limit
        What `error` may be.
    alone
        What the operation gives by itself on the baseline's inputs, where these were at hand; `error` and `nrms` are
        then its own.
    """

    change: Change
    operation: str = ""
    message: str = ""
    source_line: str = ""
    source_place: SourcePlace | None = field(default=None, compare=False)
    error: float | None = None
    nrms: float | None = None
    limit: float | None = None
    alone: IsolatedResult | None = None


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How large a difference is at one operation on its way to the output."""

    operation: str
    error: float
    nrms: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One model against its baseline.

    Attributes
    ----------
    verdict
        The most serious class found.
    fails
        Whether that, under the conditions asked for, fails the model.
    baseline
        Which baseline it was: its file, relative to rootdir, and the environment whose numbers were compared.
    axes
        In what the environments differ: ``"torch 2.13.0 → 2.14.1"``, ``"CPU capability AVX512 → AVX2"``.
    counts
        Operations by class.
    findings
        What differs by itself, the most serious first and each kind in execution order; what they lead to is counted
        alone.
    growth
        The first difference followed to the output, in a few steps.
    notes
        What could not be compared, and why: text for readers, which no code reads back.
    stored
        The baseline file that this run wrote, relative to rootdir; empty where it wrote none.
    untimed
        Why times were not compared although a condition limits them; empty otherwise.
    unsaved
        Why activations were not saved although the run asked for them; empty otherwise.
    against
        The interpreter whose run it was compared with, now, on this machine; empty for a stored baseline.
    """

    verdict: Change
    fails: bool = False
    baseline: str = ""
    axes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    growth: tuple[Growth, ...] = ()
    notes: tuple[str, ...] = ()
    stored: str = ""
    untimed: str = ""
    unsaved: str = ""
    against: str = ""

    @property
    def first(self) -> Finding | None:
        """The finding to look at first."""
        return self.findings[0] if self.findings else None
