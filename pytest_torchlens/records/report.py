"""Holds the reports on one model (`ModelReport`), on a run over many (`RunReport`), on a test (`TracedTest`)."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from dataclasses import replace
from typing import Any
from typing import ClassVar

from pytest_torchlens.records.checks import CheckResult
from pytest_torchlens.records.comparison import Comparison
from pytest_torchlens.records.history import ActivationStatistics
from pytest_torchlens.records.history import HistoryRecord
from pytest_torchlens.records.measurements import Measurements
from pytest_torchlens.records.operation import SourcePlace
from pytest_torchlens.records.verdict import AuditFinding
from pytest_torchlens.records.verdict import Severity
from pytest_torchlens.records.verdict import Verdict

SCHEMA = 1
TESTS_ZOO = "tests"
"""The zoo name of models that tests call."""


class Outcome(str, enum.Enum):
    """pytest's outcome of an item."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"


class Stage(str, enum.Enum):
    """The last stage that a model reached."""

    BUILD = "build"
    INPUTS = "inputs"
    FORWARD = "forward"
    RECORD = "record"
    VALIDATE = "validate"
    DRAW = "draw"
    COMPARE = "compare"
    CHECK = "check"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class ErrorRecord:
    """An exception, as text."""

    stage: Stage
    type: str
    message: str
    traceback: str = ""
    source_place: SourcePlace | None = field(default=None, compare=False)
    """Where its traceback ends; null without one."""

    def __post_init__(self) -> None:
        """Fill in the place, where a record of an older version has the traceback alone."""
        if self.source_place is None:
            object.__setattr__(self, "source_place", _last_place(self.traceback))


_FRAME = re.compile(r'^ *File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$', re.MULTILINE)


def _last_place(traceback: str) -> SourcePlace | None:
    frames = list(_FRAME.finditer(traceback))
    return SourcePlace(frames[-1]["file"], int(frames[-1]["line"]), frames[-1]["function"] or "") if frames else None


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    """Everything that a person or a CI reads about one model."""

    WHOLE: ClassVar = True
    zoo: str
    """Name of its zoo; empty without one."""
    name: str
    """Its name in the zoo."""
    nodeid: str = ""
    """pytest's id of the item."""
    outcome: Outcome = Outcome.PASSED
    """pytest's outcome of the item."""
    stage: Stage = Stage.DONE
    """The stage that failed, or ``done``."""
    error: ErrorRecord | None = None
    """The exception; null without one."""
    weights: str = ""
    """The zoo's setting of what its parameters hold."""
    inputs: tuple[str, ...] = ()
    """Each input as ``"x: float32[1, 3, 224, 224]"``."""
    outputs: tuple[str, ...] = ()
    """Each output, in the same way."""
    forward_ms: float | None = None
    """Plain untraced forward pass, in milliseconds: median of ``forward_runs`` after one warm-up."""
    forward_runs: int = 0
    """Forward passes that were timed."""
    record_ms: float | None = None
    """The recorded forward pass, in milliseconds (one run)."""
    seconds: float = 0.0
    """Wall time of the item, building and drawing included."""
    history: HistoryRecord | None = None
    """The recorded forward pass; null if none was completed.  In ``report.json`` without its lists."""
    verdict: Verdict | None = None
    """The result of validation; null if it did not run."""
    comparison: Comparison | None = None
    """The differences from the stored baseline; null if nothing was compared."""
    checks: tuple[CheckResult, ...] = ()
    """The results of ``--lens-checks``, in the order in which they ran."""
    flops: int | None = None
    """Floating-point operations of the forward pass; null if they were not counted."""
    measurements: Measurements | None = None
    """The costs of the pass; null if they were not measured."""
    statistics: ActivationStatistics | None = None
    """Statistics of its activations; null if the run did not ask for them."""
    findings: tuple[AuditFinding, ...] = ()
    """Findings of the audit, the most severe first.  In ``report.json`` without the meaning, and
    without advice and places; those of high severity keep the advice and the first place."""
    code: dict[str, str] = field(default_factory=dict)
    """Lines of code around each ``source_line`` of its operations."""
    graph: str = ""
    """Path of the drawing, relative to the report's folder; empty without one."""
    graph_unfit: str = ""
    """Why the settings of ``--lens-graph`` do not fit the model; empty if they do, or without ``--lens-graph``."""
    graph_failed: str = ""
    """Why the drawing that ``--lens-graph`` asks for could not be made; empty otherwise."""
    unwritten: tuple[str, ...] = ()
    """Each file of the model that could not be written, with the reason and the fix."""
    notes: tuple[str, ...] = ()
    """Parts that are missing, and why: text for readers, which no code reads back."""

    @property
    def is_brief(self) -> bool:
        """Whether the operations were left out."""
        return self.history is not None and self.history.num_operations > 0 and not self.history.operations

    def with_unwritten(self, error: OSError) -> ModelReport:
        """Return the report of a model with a file that could not be written."""
        return replace(self, unwritten=(*self.unwritten, str(error)), notes=(*self.notes, str(error)))

    def brief(self) -> ModelReport:
        """Return the report for a table of all models: without operations and modules."""
        history, cost = self.history, self.measurements
        return replace(
            self,
            history=history and replace(history, **_without_lists(history)),
            measurements=cost and replace(cost, **_without_lists(cost) | {"modules": cost.modules[:1]}),
            statistics=None,
            findings=tuple(map(_in_short, self.findings)),
            code={},
        )


def _in_short(finding: AuditFinding) -> AuditFinding:
    """Return a finding without what only pages show; one of high severity keeps its first place and the advice."""
    if finding.severity is Severity.HIGH:
        return replace(finding, meaning="", places=finding.places[:1])
    return replace(finding, meaning="", advice="", places=())


def _without_lists(record: HistoryRecord | Measurements) -> dict[str, Any]:
    return {field.name: () for field in fields(record) if isinstance(getattr(record, field.name), tuple)}


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Versions and settings that can change a number."""

    python: str = ""
    platform: str = ""
    torch: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of other packages (torchvision, timm, numpy, pytest, pytest-torchlens), and of the libraries in
    PyTorch's build: BLAS, MKL, oneDNN, CUDA."""
    device: str = "cpu"
    cpu_capability: str = ""
    num_threads: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    """Default dtype, deterministic algorithms, matmul precision, oneDNN; with a GPU, whether it may round to TF32."""


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """One of the runs of a merged report."""

    created: str = ""
    """ISO 8601, UTC."""
    command: str = ""
    environment: Environment = field(default_factory=Environment)
    num_models: int = 0


@dataclass(frozen=True, kw_only=True)
class LeftOutCalls:
    """The calls of models in tests that were not validated for one reason."""

    WHOLE: ClassVar = True
    reason: str
    """Why, in words."""
    tests: dict[str, int] = field(default_factory=dict)
    """Number of these calls by pytest's id of the test."""

    @property
    def calls(self) -> int:
        """Number of these calls in all tests."""
        return sum(self.tests.values())


def left_out_calls(calls: Iterable[tuple[str, str, int]]) -> tuple[LeftOutCalls, ...]:
    """Return the calls by reason, the commonest first, from ``(reason, test, number of calls)``."""
    found: dict[str, Counter[str]] = {}
    for reason, test, number in calls:
        found.setdefault(reason, Counter())[test] += number
    ordered = sorted(found.items(), key=lambda item: -item[1].total())
    return tuple(LeftOutCalls(reason=reason, tests=dict(tests)) for reason, tests in ordered)


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """One run over many models."""

    WHOLE: ClassVar = True
    schema: int = SCHEMA
    """Version of this form; a program that knows another one must not read on."""
    created: str = ""
    """ISO 8601, UTC."""
    command: str = ""
    environment: Environment = field(default_factory=Environment)
    models: tuple[ModelReport, ...] = ()
    left_out: tuple[LeftOutCalls, ...] = ()
    """Calls of models in tests that were not validated, by reason."""
    parts: tuple[RunPart, ...] = ()
    """The runs that were merged, if several; command and environment are those of the first."""


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """One outermost call of a module in a test, recorded and validated.

    Attributes
    ----------
    model
        Class name.
    verdict
        None if validation did not finish: `trouble` or `stop_reason` says why.
    findings
        Audit findings of high severity, if an output is not finite.
    trouble
        The traceback of an error in pytest-torchlens.
    stop_reason
        The limit that the call exceeded.
    operations
        Number of recorded operations.
    seconds
        Time of recording (with the call itself) and validating.
    """

    model: str
    verdict: Verdict | None = None
    findings: tuple[AuditFinding, ...] = ()
    trouble: str = ""
    stop_reason: str = ""
    operations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TracedTest:
    """The results of the outermost module calls of one test."""

    calls: int = 0
    """Number of these calls."""
    known: int = 0
    """Calls whose structure and inputs were validated before."""
    skip_reasons: dict[str, int] = field(default_factory=dict)
    """Calls that were not recorded, by reason."""
    results: tuple[TracedCall, ...] = ()
    seconds: float = 0.0
    """Time of recording and validating, and of finding which calls are known."""

    @property
    def left_out(self) -> dict[str, int]:
        """Number of calls without a verdict that are like no call with one, by reason."""
        reasons = Counter(self.skip_reasons)
        reasons.update(
            call.stop_reason or "an error of pytest-torchlens" for call in self.results if call.verdict is None
        )
        return dict(reasons)
