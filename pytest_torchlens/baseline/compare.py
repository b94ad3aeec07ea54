"""Compares one model with its baseline: aligns, judges and sorts; needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import replace

from pytest_torchlens.baseline.align import StepAlignment
from pytest_torchlens.baseline.align import is_reordered
from pytest_torchlens.baseline.conditions import DEFAULT
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.costs import cost_findings
from pytest_torchlens.baseline.distance import Tolerance
from pytest_torchlens.baseline.distance import is_exact
from pytest_torchlens.baseline.environments import axes
from pytest_torchlens.baseline.judge import Judgement
from pytest_torchlens.baseline.judge import Judgements
from pytest_torchlens.baseline.judge import Repeat
from pytest_torchlens.baseline.judge import judge
from pytest_torchlens.baseline.judge import tolerance_of
from pytest_torchlens.baseline.old_names import comparable_classes
from pytest_torchlens.baseline.old_names import note_text
from pytest_torchlens.baseline.old_names import other_values_text
from pytest_torchlens.baseline.old_names import with_old_values
from pytest_torchlens.baseline.outputs import compare_outputs
from pytest_torchlens.baseline.snapshot import STATUSES
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.snapshot_file import function_of
from pytest_torchlens.baseline.training import trains_differently
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import Finding
from pytest_torchlens.records import Growth
from pytest_torchlens.records import RerunResult

SERIOUS = (
    Change.STRUCTURE,
    Change.META_CHANGE,
    Change.INPUTS_DIFFER,
    Change.NAN_CHANGE,
    Change.REGRESSION,
    Change.NEWLY_UNSTABLE,
    Change.REFACTOR,
    Change.DECISION_FLIP,
    Change.UNSTABLE,
    Change.LOCAL_CHANGE,
    Change.DRIFT,
    Change.LARGER,
    Change.SLOWER,
    Change.ENVIRONMENT,
    Change.IDENTICAL,
)
"""Classes of change, the most serious first."""
_MOVES = (Change.STRUCTURE, Change.META_CHANGE)
"""Classes of change that are a refactor where the outputs stay what they were."""
_MOST = 20
"""Findings that a comparison lists; its counts cover all."""
_GROWTH = 6


def compare(
    before: Snapshot,
    after: Snapshot,
    conditions: Conditions | None = None,
    *,
    baseline: str = "",
    repeat: Repeat | None = None,
    seconds: tuple[float, float] | None = None,
) -> Comparison:
    """Compare a forward pass with a stored one.

    Parameters
    ----------
    before
        The baseline.
    after
        The new pass; its numbers of one environment are compared.
    conditions
        What may differ, and what fails; None for the defaults.
    baseline
        Name of the baseline in messages.
    repeat
        Runs operations alone on the baseline's inputs, which separates an operation's own error from the error that it
        inherits.  Without it, an operation's own error is known only where its inputs are equal.
    seconds
        Time of the fastest pass then and now; None if the two were not measured on one machine.

    Returns
    -------
    Comparison
        The verdict, and each difference where it begins.  What follows from a difference is only counted.
    """
    conditions = conditions or Conditions()
    named = with_old_values(before, after)
    after = named or after
    blocks = _blocks(before, after)
    aligned = StepAlignment(before, after)
    judged = judge(aligned, blocks, conditions, repeat)
    costs = cost_findings(before, after, conditions, seconds)
    tolerance, _ = tolerance_of(blocks, conditions)
    outputs = compare_outputs(before, after, blocks, tolerance)
    findings = sorted(
        [*_differences(aligned, judged), *costs.values(), *(_less_proved(*blocks) if blocks else ())],
        key=lambda finding: SERIOUS.index(finding.change),
    )
    is_same = outputs is not None and outputs.within and _are_within(aligned, judged.judgements, tolerance)
    if is_same and _are_moves(aligned, findings):
        more = "; computes the same" if aligned.only_names_differ else ""
        findings = [_as_refactor(found, more) if found.change in _MOVES else found for found in findings]
    verdict = _verdict(findings, judged, blocks is not None)
    costs_too_much = any(conditions.cost(cost) is not None for cost in costs)
    words = Counter(_word(judgement, blocks is not None) for judgement in judged.judgements)
    return Comparison(
        verdict=verdict,
        fails=costs_too_much or conditions.fails_outputs(outputs) or _fails(aligned, findings, verdict, conditions),
        fails_outputs=conditions.fails_outputs(outputs),
        baseline=baseline,
        axes=axes(*(block.environment for block in blocks)) if blocks else (),
        counts=dict(sorted(words.items())),
        findings=tuple(findings[:_MOST]),
        growth=tuple(_growth(aligned, judged.judgements, findings)),
        outputs=outputs,
        notes=tuple(
            _notes(before if blocks is None else None, len(findings), judged.alone, _named_text(named, aligned))
        ),
    )


def _as_refactor(finding: Finding, more: str) -> Finding:
    return replace(finding, change=Change.REFACTOR, message=finding.message + more)


def _blocks(before: Snapshot, after: Snapshot) -> tuple[EnvironmentNumbers, EnvironmentNumbers] | None:
    classes = comparable_classes(before, after)
    return None if classes is None else (before.measured[classes[0]], after.measured[classes[1]])


def _differences(aligned: StepAlignment, judged: Judgements) -> Iterator[Finding]:
    yield from aligned.replacements()
    yield from aligned.renames()
    for both, judgement in zip(aligned.steps, judged.judgements, strict=True):
        if judgement.message:
            yield judgement.finding(both.step)
    yield from aligned.outside_steps()


def _are_moves(aligned: StepAlignment, findings: list[Finding]) -> bool:
    """Return whether all that fails by default are calls that moved, or were renamed or replaced by others.

    Other arguments of one function are more than that, though no output shows it: a dropout's probability.  So is what
    alters the training, and another order of the outputs.
    """
    serious = {finding.change for finding in findings if finding.change in DEFAULT}
    moved = Change.STRUCTURE in serious and serious <= set(_MOVES)
    return (
        moved
        and not any(both.recalled for both in aligned.steps)
        and not trains_differently(aligned)
        and not is_reordered(aligned.before.output, aligned.after.output)
        and _answers(aligned.before) == _answers(aligned.after)
    )


def _answers(snapshot: Snapshot) -> list[tuple[str, bool | None, str]]:
    """Return the answers to Python, whatever the operations are called that gave them."""
    return [(answer.function, answer.value, answer.branch) for answer in snapshot.answers]


def _are_within(aligned: StepAlignment, judgements: list[Judgement], tolerance: Tolerance) -> bool:
    """Return whether each step that both passes have holds the baseline's values, or values within tolerance.

    The values of views, in either pass, are those of other steps.
    """
    return not any(
        not (judgement.same or _is_within(judgement, both.after, tolerance))
        for both, judgement in zip(aligned.steps, judgements, strict=True)
        if both.before and both.after and not (both.before.is_view or both.after.is_view)
    )


def _is_within(judgement: Judgement, step: Step, tolerance: Tolerance) -> bool:
    return not is_exact(step) and judgement.error is not None and judgement.error.within(tolerance.graph(step))


def _less_proved(before: EnvironmentNumbers, after: EnvironmentNumbers) -> Iterator[Finding]:
    """Yield the parts of the validation that both ran, and that passed better in the baseline."""
    for part, old in before.proof.items():
        new = after.proof.get(part, old)
        if _rank(new) > _rank(old):
            yield Finding(change=Change.UNSTABLE, message=f"less could be proved: {part} {old} → {new}")


def _rank(status: str) -> int:
    """Return a status's place, the best first; a pass that is compared may also have failed."""
    return STATUSES.index(status) if status in STATUSES else len(STATUSES)


def _verdict(findings: list[Finding], judged: Judgements, has_numbers: bool) -> Change:
    verdict = findings[0].change if findings else Change.IDENTICAL
    if verdict is Change.IDENTICAL and any(not judgement.same for judgement in judged.judgements):
        return Change.DRIFT
    return Change.ENVIRONMENT if verdict is Change.IDENTICAL and not has_numbers else verdict


def _word(judgement: Judgement, has_numbers: bool) -> str:
    """Return the class of a step; without numbers, no step is known to compute the same."""
    unknown = judgement.change is Change.IDENTICAL and not has_numbers
    return (Change.ENVIRONMENT if unknown else judgement.change).value


def _fails(aligned: StepAlignment, findings: list[Finding], verdict: Change, conditions: Conditions) -> bool:
    steps = {step.id: step for side in (aligned.before, aligned.after) for step in side.steps}
    if any(conditions.fails(finding.change, steps.get(finding.operation)) for finding in findings):
        return True
    return not findings and conditions.fails(verdict)


def _growth(aligned: StepAlignment, judgements: list[Judgement], findings: list[Finding]) -> Iterator[Growth]:
    """Yield the first difference in numbers, some of the steps that it reaches in order, and the last of them."""
    first = next((finding for finding in findings if finding.error is not None), None)
    if first is None:
        return
    places = [place for place, both in enumerate(aligned.steps) if both.step.id == first.operation]
    reached = _affected_steps(aligned, judgements, places[0]) if places else []
    way = [place for place in reached if judgements[place].error is not None]
    gaps = max(len(way) - 1, 1)
    for place in dict.fromkeys(way[round(i * gaps / (_GROWTH - 1))] for i in range(_GROWTH) if len(way) > 1):
        error = judgements[place].error
        if error is not None:
            yield Growth(operation=aligned.steps[place].step.id, error=error.largest, nrms=error.nrms)


def _affected_steps(aligned: StepAlignment, judgements: list[Judgement], start: int) -> list[int]:
    reached = {start}
    for place, both in enumerate(aligned.steps):
        if reached & set(both.parents) and not judgements[place].same:
            reached.add(place)
    return sorted(reached)


def _named_text(named: Snapshot | None, aligned: StepAlignment) -> str:
    return note_text(named.old_names) if named and named.old_names else other_values_text(aligned)


def _notes(
    without_numbers: Snapshot | None, count: int, alone: Mapping[str, RerunResult], renamed: str
) -> Iterator[str]:
    if without_numbers is not None:
        known = ", ".join(sorted(without_numbers.measured)) or "no environment"
        yield f"numbers were not compared: the baseline has those of {known}"
    if count > _MOST:
        yield f"{count - _MOST} further differences are not listed"
    yield from _of_repeated(alone)
    if renamed:
        yield renamed


def _of_repeated(alone: Mapping[str, RerunResult]) -> Iterator[str]:
    """Yield how many operations were run alone, how many results differ, and why other operations were not run."""
    ran = {name: result for name, result in alone.items() if not result.reason}
    if ran:
        other = Counter(function_of(name) for name, result in ran.items() if not result.same)
        counts = ", ".join(f"{count} {function}" for function, count in other.most_common()) or "none"
        size = f"{len(ran)} operation{'s' * (len(ran) != 1)}"
        yield f"run again on the baseline's inputs: {size}; with other results: {counts}"
    for reason, count in Counter(result.reason for result in alone.values() if result.reason).most_common():
        yield f"not run again: {count} operation{'s' * (count != 1)}: {reason}"
