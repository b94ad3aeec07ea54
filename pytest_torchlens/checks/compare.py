"""Compares the outputs of a model that was run another way with those of a plain run, and finds where they part."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.checks import results
from pytest_torchlens.checks.evidence import TwoRuns
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.inputs import with_inputs
from pytest_torchlens.checks.output_gradients import moved_tensor
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.side_by_side import Fit
from pytest_torchlens.checks.side_by_side import Parting
from pytest_torchlens.checks.side_by_side import Place
from pytest_torchlens.checks.side_by_side import part
from pytest_torchlens.checks.side_by_side import whole
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import K_VERY_FEW
from pytest_torchlens.checks.tolerance import MOVES
from pytest_torchlens.checks.tolerance import VERY_FEW
from pytest_torchlens.checks.tolerance import Judgement
from pytest_torchlens.checks.tolerance import is_plainly_explained
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.checks.vacuity import dependent_outputs
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass
class Compared:
    """The outputs of a run another way, beside those of a plain run.

    Attributes
    ----------
    worst
        The path and judgement of the output that is off most; None if none is off by more than some last places.
    values
        Both values of it where they differ most.
    count
        Number of outputs that were compared and depend on the input.
    unseen
        Outputs that could not be compared, each with the reason.
    """

    worst: tuple[str, Judgement] | None = None
    values: str = ""
    count: int = 0
    unseen: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether all differences are explained."""
        return self.worst is None or self.worst[1].within


def compare_outputs(
    subject: Subject,
    outputs: Outputs,
    fit: Fit = whole,
    depend: set[str] | None = None,
    left_out: Mapping[str, str] = _NOTHING,
) -> Compared:
    """Compare the outputs of another run with those of the plain run of a subject; the rest as in `compare`.

    Raises
    ------
    NotApplicableError
        If they differ in bits and there is no float64 reference.
    """
    found = Compared()
    dependent = dependent_outputs(subject) if depend is None else depend
    for path, reference in subject.outputs.items():
        name = output_name(path)
        if path not in dependent:
            found.unseen.append(f"{name} does not depend on the input")
            continue
        if path in left_out:
            found.unseen.append(left_out[path])
            continue
        other = outputs.get(path)
        views = [] if other is None else list(fit(other, reference))
        if not views:
            found.unseen.append(f"{name} has {_unfit(other, reference)}")
            continue
        found.count += 1
        if not any(_is_same(view, reference) for view in views):
            _note(found, path, reference, views, subject)
    return found


def _unfit(other: torch.Tensor | None, reference: torch.Tensor) -> str:
    if other is not None and other.shape == reference.shape:
        return "no positions of the sequence"
    shape = "none" if other is None else f"shape {tuple(other.shape)}"
    return f"{shape} then, and shape {tuple(reference.shape)} in the plain run"


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and fingerprint(one) == fingerprint(other)


def differing_outputs(one: Outputs, other: Outputs) -> list[str]:
    """Return the paths of the outputs that are not bit for bit the same in two runs, or that only one has."""
    return [
        path for path in one | other if path not in one or path not in other or not _is_same(one[path], other[path])
    ]


def values_at(path: str, one: Outputs, other: Outputs) -> str:
    """Return both values of an output where they differ most; empty if only one run has it."""
    return values_text(one[path], other[path]) if path in one and path in other else ""


def _note(found: Compared, path: str, reference: torch.Tensor, views: list[torch.Tensor], subject: Subject) -> None:
    if any(is_plainly_explained(view, reference) for view in views):
        return
    judged = [(judge(view, reference, subject.exact[path]), view) for view in views]
    judgement, view = min(judged, key=lambda item: (not item[0].within, item[0].excess))
    if not judgement.within and not is_discrete(reference) and reference.numel():
        few = reference.numel() < VERY_FEW
        judgement = _among_moved(subject, path, judgement) if few else _beside_moved(subject, path, judgement, view)
    former = found.worst[1] if found.worst else None
    if former is None or (not judgement.within, judgement.excess) > (not former.within, former.excess):
        found.worst, found.values = (path, judgement), values_text(reference, view)


_NEARLY = 10.0
"""So many times as much as is explained may be chance, too, of more elements: an error that most of them share."""


def _among_moved(subject: Subject, path: str, judgement: Judgement) -> Judgement:
    """Return a judgement with a limit from several plain passes, whose inputs are moved by one unit in the last place.

    It stays as it is where no input is a real number.
    """
    exact, errors = subject.exact[path], [judgement.reference_error]
    errors += [judge(outputs[path], outputs[path], exact).error for outputs in _moved_outputs(subject)]
    own = math.sqrt(sum(error**2 for error in errors) / len(errors))
    limit = max(judgement.limit, K_VERY_FEW * own)
    return judgement._replace(limit=limit, within=judgement.error <= limit)


def _beside_moved(subject: Subject, path: str, judgement: Judgement, view: torch.Tensor) -> Judgement:
    """Return the judgement beside one of these passes that explains what is nearly explained; else the former one."""
    moved = _moved_outputs(subject) if judgement.excess <= _NEARLY else ()
    judged = (judge(view, outputs[path], subject.exact[path]) for outputs in moved)
    return next((one for one in judged if one.within), judgement)


def _moved_outputs(subject: Subject) -> Iterator[Outputs]:
    for seed in range(MOVES):
        given = with_inputs(subject, partial(moved_tensor, seed=seed))
        yield subject.once(("moved inputs", seed), partial(subject.call, *given, way="on inputs moved by one unit"))


def compare(  # noqa: PLR0913 - what ran how, and the words for it
    name: str,
    subject: Subject,
    outputs: Outputs,
    record: Callable[[], ModelHistory],
    way: str,
    advice: str,
    fit: Fit = whole,
    depend: set[str] | None = None,
    left_out: Mapping[str, str] = _NOTHING,
) -> CheckResult:
    """Return the result of a check that compares outputs.

    Parameters
    ----------
    name
        Of the check.
    subject
        The model and the inputs of the plain run.
    outputs
        The outputs when it is run another way.
    record
        Records that run, to find where it parts from the plain one.
    way
        How it was run: ``"in a batch of 4"``.
    advice
        What to do if they part.
    fit
        Finds what corresponds to a tensor of the plain run.
    depend
        Paths of the outputs that depend on the input; None to find out.
    left_out
        Outputs that are not compared: the reason by path.
    """
    found = compare_outputs(subject, outputs, fit, depend, left_out)

    def find(path: str) -> tuple[ModelHistory, Parting]:
        other = record()
        parting = part(subject, subject.history, other, fit, path)
        if parting.place is not None and not parting.is_tie:
            number, alive = parting.place.number, (subject, record)
            history = subject.history
            subject.tools.witness(TwoRuns(history=history, number=number, other=other, way=way, fit=fit, alive=alive))
        return subject.history, parting

    return conclude(name, subject, found, way, advice, find)


Find = Callable[[str], tuple[ModelHistory, Parting]]
"""Returns the history whose operations are named, and where it parts on the way to the output at a path."""


def conclude(
    name: str,
    subject: Subject,
    found: Compared,
    way: str,
    advice: str,
    find: Find,
) -> CheckResult:
    """Return the result of a comparison."""
    if not found.count:
        raise NotApplicableError("; ".join(found.unseen) or "its output holds no tensor to compare")
    worst = found.worst[1] if found.worst else None
    numbers: dict[str, Any] = {
        "compared": found.count,
        "error": worst.error if worst else None,
        "reference_error": worst.reference_error if worst else None,
        "limit": worst.limit if worst else None,
        "redrawn": subject.redrawn,
    }
    if found.agrees or found.worst is None:
        return results.passed(name, unseen=tuple(found.unseen), **numbers)
    path, judgement = found.worst
    what = f"{output_name(path)} differs {way}: {words_of(judgement)}"
    history, parting, unseen = _parting(find, path)
    if parting.is_tie:
        return results.tie(name, failure_at_place(history, parting.flips[0], what, "", found.values), **numbers)
    failure = failure_at_place(history, parting.place, what, advice, found.values)
    return results.failed(name, failure, unseen=(*found.unseen, *unseen), **numbers)


def passed_all(name: str, found: Sequence[CheckResult], notes: Sequence[str] = ()) -> CheckResult:
    """Return one result for several comparisons that passed, with the errors of the worst."""
    worst = max(found, key=lambda result: result.error or 0.0)
    compared = sum(result.compared for result in found)
    unseen = tuple(dict.fromkeys(text for result in found for text in result.unseen))
    return replace(worst, name=name, compared=compared, unseen=unseen, notes=tuple(notes))


def raised_when_recorded(
    runner: Subject, error: ModelRaisedError, given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
) -> ModelRaisedError:
    """Return the error of a pass as the recorded pass raises it, with the number of calls before it."""
    args, kwargs = given or (None, None)
    try:
        runner.record(args, kwargs, way=error.way)
    except ModelRaisedError as recorded:
        return recorded
    return error


def summed_up(name: str, found: Sequence[CheckResult], notes: Sequence[str] = ()) -> CheckResult:
    """Return one result for several comparisons of which none failed: the first tie, else that all passed."""
    ties = (result for result in found if result.status is CheckStatus.TIE)
    return next(ties, None) or passed_all(name, found, notes)


def compare_each(name: str, parts: Mapping[str, Callable[[], CheckResult]]) -> CheckResult:
    """Return the first failure of several comparisons, else one result for those that apply.

    Parameters
    ----------
    name
        Of the check.
    parts
        The comparisons, by the words for what each is of.

    Raises
    ------
    NotApplicableError
        If none applies.
    """
    found: list[CheckResult] = []
    unseen: list[str] = []
    for words, compared in parts.items():
        try:
            result = compared()
        except NotApplicableError as reason:
            unseen.append(f"{words}: {reason}")
            continue
        if result.status is CheckStatus.FAILED:
            return result
        found.append(result)
    if not found:
        raise NotApplicableError("; ".join(unseen))
    result = summed_up(name, found, [note for result in found for note in result.notes])
    return replace(result, unseen=(*result.unseen, *unseen))


def words_of(judgement: Judgement) -> str:
    """Return an error beside what is explained."""
    if judgement.is_count:
        return f"{judgement.error:.3g} values are other ones"
    if judgement.error == math.inf:
        return "not the same numbers"
    return f"RMS error {judgement.error:.2g}, explained are {judgement.limit:.2g}"


def _parting(find: Find, path: str) -> tuple[ModelHistory | None, Parting, tuple[str, ...]]:
    """Return where the runs part, and why that is not known."""
    try:
        history, parting = find(path)
    except OutOfTimeError as error:
        return None, Parting(), (f"where they part: {error}",)
    except Exception as error:  # noqa: BLE001 - any call may raise when it is run again
        return None, Parting(), (f"where they part: {type(error).__name__}: {error}",)
    if parting.place is None and not parting.is_tie:
        return history, parting, ("where they part: no operation differs by more than rounding explains",)
    return history, parting, ()


def failure_at_place(history: ModelHistory | None, place: Place | None, what: str, advice: str, values: str) -> Failure:
    """Return the failure where two runs part; `values` are those of the output."""
    if place is None:
        return Failure(message=what, advice=advice, values=values)
    values = place.values or values
    failure = results.failure_at(history, place.number, what, advice, values=values, cause=place.cause)
    if place.added_at is None:
        return failure
    return replace(failure, source_line=str(place.added_at), source_place=place.added_at)
