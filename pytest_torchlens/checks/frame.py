"""Runs checks of one model: each within its limit of time, and so that whatever it does, the model stays as it was."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.checks import results
from pytest_torchlens.checks.catalog import PlannedCheck
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import WrongOptionError
from pytest_torchlens.checks.subject import lacks_memory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.records import Failure
from pytest_torchlens.records import SourcePlace

_REPORT = "please report this, with the message; 'checks' in the zoo file, or --lens-checks, can leave the check out"
_NO_WORD = "a check returns a CheckResult, as pytest_torchlens.checks.results makes them"


def run_checks(
    subject: Subject, plan: Sequence[PlannedCheck], progress: Callable[[str], object] = lambda name: None
) -> tuple[CheckResult, ...]:
    """Return the result of each check; none raises.

    Parameters
    ----------
    subject
        The model and its inputs.
    plan
        The checks, in order.
    progress
        Called with the name of each check as it begins.
    """
    found: list[CheckResult] = []
    before = subject.state()
    for planned in plan:
        progress(planned.check.name)
        start = time.monotonic()
        subject.deadline = start + planned.setting.seconds
        if subject.plain_error is not None:
            first = next(one.name for one in found if one.status is CheckStatus.FAILED)
            result = results.not_applicable(planned.check.name, f"the model does not run on these inputs: see {first}")
        else:
            result = _unchanged(subject, before, _believed(planned, _result(subject, planned)))
        found.append(replace(result, xfail=planned.setting.xfail, seconds=time.monotonic() - start))
    return tuple(found)


def _result(subject: Subject, planned: PlannedCheck) -> object:
    """Return what a check returns, or what its exception means."""
    name = planned.check.name
    if any(tensor.is_meta for _, tensor in [*walk(subject.args), *walk(subject.kwargs)]):
        return results.not_applicable(name, "an input is on the meta device, where nothing is computed")
    try:
        with subject.tools.preserved():  # a check may leave other settings
            return planned.check.run(subject, **planned.setting.options)
    except NotApplicableError as reason:
        if isinstance(reason.__cause__, ModelRaisedError) and _does_not_run(subject):
            return _failed_plainly(subject, name)
        return results.not_applicable(name, str(reason))
    except WrongOptionError as error:
        return _error(name, str(error), "write another one among the check's options")
    except ModelRaisedError as error:
        if _does_not_run(subject):
            return _failed_plainly(subject, name)
        return results.failed(name, results.failure_of_raise(vars(subject).get("history"), error))
    except Exception as error:  # noqa: BLE001 - a check, also a user's, may raise anything
        if lacks_memory(error):
            return results.not_applicable(name, "the memory does not suffice for this check")
        return _error(name, f"the check raised {type(error).__name__}: {error}", _REPORT, _last_place(error))


def _does_not_run(subject: Subject) -> bool:
    """Return whether the model raises in a plain pass, too; what it raises is noted for the other checks."""
    try:
        _ = subject.outputs
    except ModelRaisedError as error:
        subject.plain_error = error
    except NotApplicableError:  # too little time or memory
        return False
    return subject.plain_error is not None


def _failed_plainly(subject: Subject, name: str) -> CheckResult:
    error = subject.plain_error
    assert error is not None  # noqa: S101 - the caller looked
    message = (
        f"the model raised {type(error.error).__name__} on these inputs, before anything was checked: {error.error}"
    )
    return results.failed(name, results.failure_of_error(message, error.error, "give inputs that the model takes"))


def _error(name: str, message: str, advice: str, place: SourcePlace | None = None) -> CheckResult:
    failure = Failure(message=message, advice=advice, source_line=str(place or ""), source_place=place)
    return CheckResult(name=name, status=CheckStatus.ERROR, failure=failure)


def _last_place(error: Exception) -> SourcePlace | None:
    frames = traceback.extract_tb(error.__traceback__)
    return SourcePlace(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else None


def _believed(planned: PlannedCheck, result: object) -> CheckResult:
    """Return a result that can be true; an error in place of any other."""
    name = planned.check.name
    wrong = partial(_error, name, advice=_NO_WORD)
    if not isinstance(result, CheckResult):
        return wrong(f"the check returned {type(result).__name__}, expected a CheckResult")
    if result.name != name:
        return wrong(f"the check returned the result of {result.name!r}")
    if result.status is CheckStatus.PASSED and not result.compared:
        return wrong("the check says that it passed, and compared nothing")
    if result.status is CheckStatus.NOT_APPLICABLE and not result.reason:
        return wrong("the check says that it is not applicable, and not why")
    if result.status in (CheckStatus.FAILED, CheckStatus.TIE) and result.failure is None:
        return wrong(f"the check says {result.status.value}, and not what differs")
    return result


def _unchanged(subject: Subject, before: dict[str, str], result: CheckResult) -> CheckResult:
    """Return the result; an error if the check left another model than it got."""
    changed = _differences(before, subject.state())
    if not changed:
        return result
    subject.restore_weights()
    left = _differences(before, subject.state())
    end = f"{', '.join(left[:3])} could not be put back" if left else "it was put back"
    what = f"the check changed {', '.join(changed[:3])} of the model; {end}"
    return _error(result.name, what, "a check runs the model by Subject.call and Subject.record, or on a copy")


def _differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [name for name in before | after if before.get(name) != after.get(name)]
