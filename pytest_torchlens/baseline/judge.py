"""Judges for each aligned step whether a difference begins there or comes from an earlier step."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace

from pytest_torchlens.baseline.align import StepAlignment
from pytest_torchlens.baseline.align import StepPair
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.distance import NONE
from pytest_torchlens.baseline.distance import Error
from pytest_torchlens.baseline.distance import Tolerance
from pytest_torchlens.baseline.distance import error_between
from pytest_torchlens.baseline.distance import is_exact
from pytest_torchlens.baseline.distance import terms_of
from pytest_torchlens.baseline.environments import machine_axes
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.spelling import reads_by_place
from pytest_torchlens.records import Change
from pytest_torchlens.records import Environment
from pytest_torchlens.records import Exactness
from pytest_torchlens.records import Finding
from pytest_torchlens.records import RerunResult

SOURCES = ("input", "constant")
_DECISIONS = frozenset(
    "argmax argmin argsort topk sort msort kthvalue mode max min median nanmedian maxpool1d maxpool2d maxpool3d unique "
    "uniqueconsecutive nonzero bucketize searchsorted multinomial nms round floor ceil trunc sign heaviside gt lt ge "
    "le eq ne greater less where gridsample gridsampler interpolate onehot quantize roialign".split()
)
"""Functions that choose: a small difference in their inputs can make a large one in their results."""
_STEPPED = frozenset("mode unique uniqueconsecutive round floor ceil trunc sign heaviside quantize".split())
"""Of these, the functions whose results are no whole numbers and can jump all the same."""
_RESAMPLED = frozenset("gridsample gridsampler interpolate".split())
"""Functions that choose if they are told to take the nearest value."""
_SUMS = frozenset("add sub mean sum diff lerp addmm addcmul baddbmm".split())
"""Functions whose terms may cancel: their error is measured relative to the terms."""
_CANCELLED = 1e-3
_GROWTH_RATIO = 10.0
"""If a small difference grows by more than this ratio, the operation itself is at fault."""
_NEVER_EXCUSED = 10.0
"""Beyond this many times the limit no error is excused, however exact the result."""
UNSTABLE = (Change.UNSTABLE, Change.NEWLY_UNSTABLE)
"""Changes of an operation that gives other values each time."""
_EACH = "each run gives other values"
_NEWLY = "each run gives other values now, and gave the same ones in the baseline's run"
_OWN = "from equal inputs it computes other values"
_UNSTEADY = "on the baseline's inputs it gives other values each time"
_ONCE = "from equal inputs it gave other values in the pass, and the baseline's when it was run again"


@dataclass
class Judgement:
    """The judgement of one step.

    Attributes
    ----------
    change
        The class of change.
    same
        Whether the values are those of the baseline, bit for bit.
    tainted
        Whether the values follow from a difference beyond tolerance, or from another computation.  Later steps that
        read them are then not judged.
    shifted
        Whether the tensor has another shape, dtype or layout.
    error
        The difference; None if it is not known.
    message
        What differs, if the difference begins here.
    limit
        How large the error may be.
    alone
        The result of the step run alone on the baseline's inputs; None if it was not run.
    wavers
        Whether repeating the pass gave the step other values, or a step that it depends on.
    """

    change: Change = Change.IDENTICAL
    same: bool = True
    tainted: bool = False
    shifted: bool = False
    error: Error | None = NONE
    message: str = ""
    limit: float | None = None
    alone: RerunResult | None = None
    wavers: bool = False

    def finding(self, step: Step) -> Finding:
        """Return it as a finding at a step."""
        own = self.alone is not None and not self.alone.same
        error = Error(self.alone.error, self.alone.nrms) if own and self.alone is not None else self.error
        return Finding(
            change=self.change,
            operation=step.id,
            message=self.message,
            source_place=step.source_place,
            error=error.largest if error else None,
            nrms=error.nrms if error else None,
            limit=self.limit,
            alone=self.alone,
        )


@dataclass
class _Case:
    """A step of both snapshots, and all that its judgement depends on."""

    before: Step
    after: Step
    old: Numbers
    new: Numbers
    parents: list[Judgement]
    weights: list[str]
    """Parameters and buffers that the step reads and that differ."""
    rewired: bool
    error: Error | None = None

    @property
    def inherits(self) -> bool:
        return any(not parent.same for parent in self.parents)

    @property
    def tainted(self) -> bool:
        return self.rewired or any(parent.tainted for parent in self.parents)

    @property
    def wavers(self) -> bool:
        return self.new.unstable or self.inherits_wavering

    @property
    def inherits_wavering(self) -> bool:
        return any(parent.wavers for parent in self.parents)

    @property
    def inherited(self) -> Error:
        """The largest difference among the parents."""
        known = [parent.error for parent in self.parents if parent.error is not None]
        return max(known, key=lambda error: error.nrms, default=NONE)

    @property
    def same(self) -> bool:
        """Whether the values are equal; without digests, whether those of the parents are."""
        if (self.before.shape, self.before.dtype) != (self.after.shape, self.after.dtype):
            return False
        if not (self.old.digest or self.new.digest):
            return not (self.inherits or self.weights)
        return self.old.digest == self.new.digest


@dataclass(frozen=True)
class Suspects:
    """Operations to run again alone, on the baseline's inputs.

    Attributes
    ----------
    scales
        By step id in the new pass: the smallest value to divide an error by.
    partners
        By step id in the new pass: the id of the same step in the baseline, for all steps that both passes have.
    numbers
        The baseline's numbers.
    """

    scales: dict[str, float]
    partners: dict[str, str]
    numbers: dict[str, Numbers]


Repeat = Callable[[Suspects], Mapping[str, RerunResult]]


@dataclass(frozen=True)
class Judgements:
    """The judgements of all steps.

    Attributes
    ----------
    judgements
        One for each aligned step, in order.
    alone
        Results of the steps that were run again alone, by id.
    """

    judgements: list[Judgement]
    alone: Mapping[str, RerunResult]


def judge(
    aligned: StepAlignment,
    blocks: tuple[EnvironmentNumbers, EnvironmentNumbers] | None,
    conditions: Conditions,
    repeat: Repeat | None = None,
) -> Judgements:
    """Judge aligned steps.

    Parameters
    ----------
    aligned
        The steps of both snapshots.
    blocks
        The numbers to compare, before and after; None if the snapshots have no comparable numbers.
    conditions
        The limits that the user set.
    repeat
        Runs operations alone on the baseline's inputs; the steps are then judged again with its results.
    """
    tolerance, machines_differ = tolerance_of(blocks, conditions)
    numbers = (blocks[0].numbers, blocks[1].numbers) if blocks else None
    steps = _Judge((aligned.before, aligned.after), numbers, tolerance, machines_differ)
    judgements = steps.judge(aligned)
    if repeat is None or not steps.suspects or numbers is None:
        return Judgements(judgements, {})
    alone = repeat(Suspects(steps.suspects, aligned.partners, numbers[0]))
    return Judgements(steps.judge(aligned, alone), alone)


def tolerance_of(
    blocks: tuple[EnvironmentNumbers, EnvironmentNumbers] | None, conditions: Conditions
) -> tuple[Tolerance, bool]:
    """Return how much numbers of two environments may differ, and whether these are different machines."""
    environments = [block.environment for block in blocks or ()]
    machines_differ = bool(environments and machine_axes(*environments))
    return Tolerance(conditions, machines_differ, environments[1] if environments else Environment()), machines_differ


class _Judge:
    """Judges aligned steps in order.

    Parameters
    ----------
    snapshots
        Before and after.
    numbers
        Their numbers; None if they have none to compare.
    tolerance
        How much the numbers may differ.
    machines_differ
        Whether they come from different CPUs or settings: every kernel may then differ.

    Attributes
    ----------
    suspects
        Steps whose own error must be separated from the inherited one, by id in `after`; for each the least value to
        divide an error by.
    """

    def __init__(
        self,
        snapshots: tuple[Snapshot, Snapshot],
        numbers: tuple[dict[str, Numbers], dict[str, Numbers]] | None,
        tolerance: Tolerance,
        machines_differ: bool,
    ) -> None:
        self.suspects: dict[str, float] = {}
        self._alone: Mapping[str, RerunResult] = {}
        self._states = snapshots[0].state, snapshots[1].state
        self._numbers = numbers or ({}, {})
        self._tolerance = tolerance
        self._machines_differ = machines_differ
        self._steps: list[StepPair] = []
        self._steps_by_id: dict[str, Step] = {}
        self._judgements: list[Judgement] = []

    def judge(self, aligned: StepAlignment, alone: Mapping[str, RerunResult] | None = None) -> list[Judgement]:
        """Return a judgement for each step, in order; `alone` has the suspects' results on the baseline's inputs."""
        self._steps, self._judgements, self._alone = aligned.steps, [], alone or {}
        self._steps_by_id = {both.after.id: both.after for both in aligned.steps if both.after is not None}
        for both in aligned.steps:
            self._judgements.append(self._judge(both))
        return self._judgements

    def _judge(self, both: StepPair) -> Judgement:
        if both.before is None or both.after is None:
            return Judgement(Change.STRUCTURE, same=False, tainted=True, shifted=True, error=None)
        case = self._case(both, both.before, both.after)
        return replace(self._judge_case(both, case), wavers=case.wavers)

    def _judge_case(self, both: StepPair, case: _Case) -> Judgement:
        shifted = bool(both.meta)
        if both.structure:
            return Judgement(Change.STRUCTURE, case.same, not case.same, shifted, case.error, "; ".join(both.structure))
        if shifted:
            return self._judge_layout(both, case)
        if case.same and case.weights:  # other weights, which this input does not show
            return Judgement(Change.INPUTS_DIFFER, message=self._of_weights(case))
        if case.same and case.new.unstable and not (case.old.unstable or case.inherits_wavering):
            return Judgement(Change.NEWLY_UNSTABLE, message=_NEWLY)
        return Judgement() if case.same else self._judge_difference(both, case)

    def _judge_difference(self, both: StepPair, case: _Case) -> Judgement:
        """Judge a step with other values: by its result on the baseline's inputs if known, else by what it reads."""
        found, step = self._judge_values(case), case.after
        if found.change in (Change.INPUTS_DIFFER, *UNSTABLE) or case.rewired or step.is_view:
            return found
        if step.function != "output" and case.old.digest and case.new.digest:
            self.suspects[step.id] = self._scale(both)
        alone = self._alone.get(step.id)
        if alone is None or alone.reason:
            return found
        if not alone.steady:
            return replace(
                found, change=Change.NEWLY_UNSTABLE, tainted=True, message=_UNSTEADY, limit=None, alone=alone
            )
        return self._judge_same_alone(case, found, alone) if alone.same else self._judge_other_alone(case, alone)

    def _judge_same_alone(self, case: _Case, found: Judgement, alone: RerunResult) -> Judgement:
        """Judge a step that has the baseline's result on the baseline's inputs."""
        if not case.inherits:
            return replace(found, change=Change.NEWLY_UNSTABLE, tainted=True, message=_ONCE, limit=None, alone=alone)
        if found.change is Change.REGRESSION:
            return Judgement(Change.PROPAGATED, False, case.tainted, error=case.error, alone=alone)
        message = f"{found.message}; on the baseline's it gives what it gave" if found.message else ""
        return replace(found, message=message, alone=alone)

    def _judge_other_alone(self, case: _Case, alone: RerunResult) -> Judgement:
        """Judge a step that has another result on the baseline's inputs: the error is its own."""
        if alone.holes:
            message = f"on the baseline's inputs: {_of_holes(case.old, case.new)}"
            return Judgement(Change.NAN_CHANGE, False, True, error=case.error, message=message, alone=alone)
        found = self._judge_own(
            case, Error(alone.error, alone.nrms), "on the baseline's inputs it computes other values"
        )
        if found.change is Change.REGRESSION and _is_excused(alone, found.limit or 0.0):
            message = f"{found.message}, beyond tolerance, for it is more exact now"
            found = replace(found, change=Change.LOCAL_CHANGE, tainted=False, message=message)
        in_graph = case.error if case.inherits else found.error
        return replace(found, tainted=found.tainted or case.tainted, error=in_graph, alone=alone)

    def _case(self, both: StepPair, before: Step, after: Step) -> _Case:
        old, new = (side.get(step.id, Numbers()) for side, step in zip(self._numbers, (before, after), strict=True))
        parents = [self._judgements[place] for place in both.parents]
        case = _Case(before, after, old, new, parents, self._weights(before, after), both.rewired)
        if not (case.same or after.is_view) and before.shape == after.shape:  # a view's values are another step's
            case.error = error_between(old, new, after.size, self._scale(both))
        return case

    def _weights(self, before: Step, after: Step) -> list[str]:
        (first, second), old, new = self._states, reads_by_place(before), reads_by_place(after)
        return [name for place, name in new.items() if place in old and first.get(old[place]) != second.get(name)]

    def _scale(self, both: StepPair) -> float:
        """Return the least value to divide an error by: for a sum, a part of its largest term."""
        if both.step.function not in _SUMS:
            return 0.0
        steps = [self._steps[place].step.id for place in both.parents]
        return max(
            (_CANCELLED * self._numbers[1][name].largest for name in steps if name in self._numbers[1]), default=0
        )

    def _judge_layout(self, both: StepPair, case: _Case) -> Judgement:
        tainted = not case.same
        message = "; ".join(both.meta)
        if case.after.function in SOURCES:
            return Judgement(Change.INPUTS_DIFFER, case.same, tainted, True, case.error, message)
        if case.weights and tainted:
            return Judgement(Change.INPUTS_DIFFER, False, True, True, None, self._of_weights(case))
        if any(parent.shifted or parent.tainted for parent in case.parents):
            return Judgement(Change.PROPAGATED, case.same, tainted, True, case.error)
        return Judgement(Change.META_CHANGE, case.same, tainted, True, case.error, message)

    def _of_weights(self, case: _Case) -> str:
        renamed = [name for name in case.weights if name not in self._states[0]]
        why = " (a new name, and a zoo's random weights follow the names)" if renamed == case.weights else ""
        return f"other weights: {', '.join(case.weights)}{why}"

    def _judge_values(self, case: _Case) -> Judgement:
        if case.after.function in SOURCES:
            return Judgement(Change.INPUTS_DIFFER, False, True, error=case.error, message="other values")
        if case.weights:
            return Judgement(Change.INPUTS_DIFFER, False, True, error=case.error, message=self._of_weights(case))
        if case.tainted or any(parent.shifted and parent.same for parent in case.parents):  # another layout
            return Judgement(Change.PROPAGATED, False, True, error=case.error)
        if case.old.unstable:
            return Judgement(Change.UNSTABLE, False, True, error=case.error, message=_EACH)
        if case.new.unstable:
            return Judgement(Change.NEWLY_UNSTABLE, False, True, error=case.error, message=_NEWLY)
        if _holes(case.old) != _holes(case.new):
            return Judgement(Change.NAN_CHANGE, False, True, error=case.error, message=_of_holes(case.old, case.new))
        return self._judge_inherited(case) if case.inherits else self._judge_own(case, case.error, _OWN)

    def _judge_own(self, case: _Case, error: Error | None, message: str) -> Judgement:
        """Judge a step whose inputs are equal: the error is its own."""
        step = case.after
        if is_exact(step) and self._machines_differ and step.function in _DECISIONS:
            return Judgement(Change.DECISION_FLIP, False, True, error=error, message="another choice")
        parents = [self._steps_by_id[edge.parent] for edge in step.parents if edge.parent in self._steps_by_id]
        limit = self._tolerance.own(step, terms_of(step, parents, self._states[1]))
        if error is None or not error.within(limit):
            return Judgement(Change.REGRESSION, False, True, error=error, message=message, limit=limit)
        change = Change.DRIFT if self._machines_differ else Change.LOCAL_CHANGE
        return Judgement(change, False, error=error, message=message, limit=limit)

    def _judge_inherited(self, case: _Case) -> Judgement:
        """Judge a step whose inputs differ within tolerance."""
        step, error = case.after, case.error or case.inherited
        if step.function == "output":
            return self._output(step, error)
        limit = self._tolerance.graph(step)
        if not is_exact(step) and error.within(limit):
            return Judgement(Change.PROPAGATED, False, error=error)
        if _can_jump(step):
            message = "inputs that differ within tolerance lead to another choice"
            return Judgement(Change.DECISION_FLIP, False, True, error=error, message=message)
        if error.nrms > _GROWTH_RATIO * case.inherited.nrms:
            grown = (
                f"{error.nrms / case.inherited.nrms:.0f} times" if case.inherited.nrms else "from nothing measurable"
            )
            message = (
                f"its inputs differ within tolerance, its result {grown} as much: its own error or a steep function"
            )
            return Judgement(Change.REGRESSION, False, True, error=error, message=message, limit=limit)
        return Judgement(Change.PROPAGATED, False, error=error)

    def _output(self, step: Step, error: Error) -> Judgement:
        limit = self._tolerance.output(step)
        if error.within(limit):
            return Judgement(Change.PROPAGATED, False, error=error)
        message = "the output differs beyond tolerance, though each operation's own error is within its own"
        return Judgement(Change.REGRESSION, False, True, error=error, message=message, limit=limit)


def _can_jump(step: Step) -> bool:
    """Return whether a small difference in what a step reads can make a large one in its result."""
    nearest = step.function in _RESAMPLED and any("nearest" in text for text in step.arguments)
    return is_exact(step) or nearest or step.function in _STEPPED


def _is_excused(alone: RerunResult, limit: float) -> bool:
    """Return whether an error beyond the limit is that of the baseline: the new result is more exact.

    Both results must lie within rounding of that in float64, which then cannot be wrong by more itself.
    """
    if alone.exactness is not Exactness.MORE or alone.before is None or alone.after is None:
        return False
    return max(alone.before, alone.after) <= limit / 2 and alone.error <= _NEVER_EXCUSED * limit


def _holes(numbers: Numbers) -> tuple[int, int, str]:
    return numbers.nan, numbers.inf, numbers.holes


def _of_holes(old: Numbers, new: Numbers) -> str:
    words = [
        f"{name} {a} → {b}" for name, a, b in (("NaN", old.nan, new.nan), ("infinite", old.inf, new.inf)) if a != b
    ]
    return f"values that are {', '.join(words)}" if words else "other places are NaN or infinite"
