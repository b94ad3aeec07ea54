"""Describes a model in the same words in every report: status, audit findings, and what to do after a failure."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.baseline.wording import repro_command
from pytest_torchlens.checks.catalog import CHECKS
from pytest_torchlens.records import TESTS_ZOO
from pytest_torchlens.records import Change
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.records import Failure
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Severity
from pytest_torchlens.records import Stage
from pytest_torchlens.records import Unproven
from pytest_torchlens.records import count_text
from pytest_torchlens.records.model_names import ZOO_ENDINGS
from pytest_torchlens.report.drawings import row_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchlens.records import AuditFinding
    from pytest_torchlens.records import AuditPlace
    from pytest_torchlens.records import CheckResult
    from pytest_torchlens.records import Comparison
    from pytest_torchlens.records import ErrorRecord
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import SourcePlace

ZOO_FOLDER = "model_zoo_configs"


@dataclass(frozen=True)
class FindingRows:
    """A finding, and the rows of its places in the layer table."""

    finding: AuditFinding
    places: tuple[tuple[AuditPlace, str], ...]
    """Each place with the id of its row, or an empty string if it has no row."""

    @property
    def num_more(self) -> int:
        """Number of places not listed."""
        return self.finding.num_places - len(self.places)


def was_audited(report: ModelReport) -> bool:
    """Whether the audit ran: it needs a history, and runs after all drawings."""
    return report.history is not None and report.stage is not Stage.DRAW


def finding_rows(report: ModelReport) -> list[FindingRows]:
    """Return the findings of a model with their places' rows."""
    operations = report.history.operations if report.history else ()
    rows = {key: row_id(op) for op in operations for key in (op.layer_label_w_pass, op.label)}
    return [
        FindingRows(finding, tuple((place, rows.get(place.operation, "")) for place in finding.places))
        for finding in report.findings
    ]


def severities(reports: Iterable[ModelReport]) -> str:
    """Return the number of findings by severity: ``"1 high, 2 medium"``; empty if there are none."""
    counts = Counter(finding.severity for report in reports for finding in report.findings)
    return ", ".join(f"{counts[severity]:,} {severity.value}" for severity in Severity if counts[severity])


def weight(report: ModelReport) -> int:
    """Return a sort key that puts the model with the most severe findings last."""
    counts = Counter(finding.severity for finding in report.findings)
    return sum(counts[severity] * 100**place for place, severity in enumerate(reversed(Severity)))


_ADVICE = {
    Stage.BUILD: "build the model alone, with the arguments its zoo gives it; its own traceback tells the line",
    Stage.INPUTS: "say what its inputs are under 'input' in its zoo file",
    Stage.FORWARD: "the model raised by itself, before anything was recorded: check its inputs and its versions",
    Stage.RECORD: "the plain forward pass worked, so recording is at fault: please report it with the traceback",
    Stage.VALIDATE: "the recording worked, so validation is at fault: please report it with the traceback",
    Stage.DRAW: "all but the drawing is in the report",
    Stage.CHECK: "the recording worked, so what makes the model or its inputs for a check is at fault",
    Stage.COMPARE: "check that the baseline is whole, or make it anew",
    Stage.DONE: "the model did well: a hook of a plugin or of a conftest.py, or a limit of theirs, failed it",
}

_ADVICE_BY_TYPE = {
    "UnexpectedPass": "where it is mended, take the 'xfail' out of its zoo file (or of the conftest.py that sets it)",
    "ZooError": "correct the zoo file where the message says",
    "UnwritableError": "store the baseline again once its file can be written: --lens-update",
    "TimeLimit": "if it may take longer, say so: 'timeout' in the zoo file, or --lens-timeout",
    "MemoryLimit": "if it may have more, say so: 'memory' in the zoo file, or --lens-memory",
    "Crash": "what it wrote last stands in pytest's section of its process; --lens-no-isolate runs it under a debugger",
}


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A failure, its place, and the remedy."""

    what: str
    where: str = ""
    place: SourcePlace | None = None
    values: str = ""
    cause: str = ""
    advice: str = ""


def is_bad(report: ModelReport) -> bool:
    """Whether a model fails the run."""
    return report.outcome is Outcome.FAILED


def status(report: ModelReport) -> str:
    """Return the status of a model: that of its verdict if the test passed, else its outcome."""
    word: str = report.outcome.value
    if report.outcome is Outcome.PASSED:
        word = report.verdict.status.value if report.verdict is not None else "not-validated"
    return word


def counts(models: Iterable[ModelReport]) -> dict[str, int]:
    """Return the number of models by status, ``failed`` first."""
    words = Counter(map(status, models))
    return dict(sorted(words.items(), key=lambda item: (item[0] not in _FIRST_WORDS, item[0])))


_FIRST_WORDS = ("failed", "unproven")


def chip_words(report: ModelReport) -> list[str]:
    """Return the words by which the index narrows its table to a model: its status, and its findings' severities."""
    found = {finding.severity for finding in report.findings}
    return [status(report), *(severity.value for severity in Severity if severity in found)]


def chips(models: Iterable[ModelReport]) -> dict[str, int]:
    """Return the number of models of each word of `chip_words`: statuses as in `counts`, then severities."""
    every = list(models)
    words = Counter(word for report in every for word in chip_words(report))
    return {word: words[word] for word in [*counts(every), *(one.value for one in Severity)] if words[word]}


def status_text(report: ModelReport) -> str:
    """Return the status of a model with its number of severe findings: ``"passed, 1 high finding"``."""
    count = num_severe(report)
    return f"{status(report)}, {count_text(count, 'high finding')}" if count else status(report)


def num_severe(report: ModelReport) -> int:
    """Return the number of audit findings of high severity."""
    return len(severe_findings(report))


def severe_findings(report: ModelReport) -> list[AuditFinding]:
    """Return the audit findings of high severity, in the order of the report."""
    return [finding for finding in report.findings if finding.severity is Severity.HIGH]


def told_once(models: Iterable[ModelReport]) -> list[tuple[ModelReport, int]]:
    """Return models, each with the number of further calls in tests that fail by its fault; these are left out."""
    firsts: list[ModelReport] = []
    numbers: Counter[object] = Counter()
    for report in models:
        fault = _fault(report)
        numbers[fault] += 1
        if fault is None or numbers[fault] == 1:
            firsts.append(report)
    return [(report, 0 if (fault := _fault(report)) is None else numbers[fault] - 1) for report in firsts]


def _fault(report: ModelReport) -> tuple[object, ...] | None:
    """Return class and fault of a model that a test called and whose verdict failed at a known line; else None."""
    if report.zoo != TESTS_ZOO or report.error is not None or report.verdict is None or report.verdict.status.ok:
        return None
    fault = report.verdict.fault
    return (report.history and report.history.model_name, fault) if fault else None


def more_calls(count: int) -> str:
    """Return in words that further calls fail by the same fault; ``""`` if none does."""
    return f"{count_text(count, 'more call')} with the same fault" if count else ""


def urgency(report: ModelReport) -> tuple[bool, bool, bool]:
    """Return a sort key: failed models first, then those with severe findings, then unproven ones."""
    return not is_bad(report), not num_severe(report), status(report) != "unproven"


def baseline_kind(report: ModelReport) -> str:
    """Return the kind of badge of a comparison: that of a pass only where nothing differs."""
    found = report.comparison
    if found is None or found.fails:
        return Outcome.FAILED.value
    return Outcome.PASSED.value if found.verdict is Change.IDENTICAL else found.verdict.value


def waits(report: ModelReport) -> str:
    """Return the key of the result that waits to be accepted, as a shell takes it; empty if none waits."""
    found = report.comparison
    if found is None or found.verdict is Change.IDENTICAL or found.stored or found.against or found.unwritten:
        return ""
    return shlex.quote(key_of(report.zoo, report.name))


def to_reproduce(report: ModelReport, check: CheckResult) -> str:
    """Return the command that reproduces a failed check; empty if no operation is accused, or it is a project's own."""
    is_known = check.name in {one.name for one in CHECKS if one.name != "state"}  # which accuses no operation's kernel
    if check.status is not CheckStatus.FAILED or not check.operation or not is_known or not report.zoo:
        return ""
    return f"pytest-lens repro {shlex.quote(command_name(report))} --check={check.name}"


def to_reproduce_change(report: ModelReport) -> str:
    """Return the command that reproduces what differs from the baseline; empty if no operation alone may show it."""
    name = report.nodeid if report.zoo == TESTS_ZOO else command_name(report)
    return repro_command(report.comparison, name) if report.comparison is not None else ""


def command_name(report: ModelReport) -> str:
    """Return how a command of ``pytest-lens`` in rootdir names a model: a zoo in no usual folder by its file."""
    file = PurePosixPath(report.nodeid.partition("::")[0])
    is_found = not report.nodeid or file.parent.name == ZOO_FOLDER or file.suffix not in ZOO_ENDINGS
    return f"{report.zoo}:{report.name}" if is_found else report.nodeid


def failed_at(report: ModelReport) -> str:
    """Return where a failed model failed: ``"forward"``, ``"replay at conv2d_2_4"``, ``"unexpected pass"``."""
    if report.error is not None and report.error.stage is Stage.DONE:
        return "unexpected pass" if report.error.type == "UnexpectedPass" else "pytest"
    if report.error is None and report.stage is Stage.CHECK and (check := failed_check(report)) is not None:
        return f"{check.name} at {check.operation}" if check.operation else check.name
    if report.error is not None or report.verdict is None:
        return report.stage.value
    if report.comparison is not None and (first := report.comparison.first) is not None and first.operation:
        return f"{report.stage.value} at {first.operation}"
    part = next(iter(report.verdict.failed_parts), None)
    if part is None:
        return report.stage.value
    operation = next((failure.operation for failure in part.failures if failure.operation), "")
    return f"{part.name} at {operation}" if operation else part.name


def failed_how(report: ModelReport) -> str:
    """Return the words after "failed": ``"in forward"``, ``"by an unexpected pass"``."""
    place = failed_at(report)
    return f"by an {place}" if place == "unexpected pass" else f"in {place}"


def trouble(report: ModelReport) -> Trouble | None:
    """Return the failure of a model and the remedy; None if it did not fail."""
    return explain(report) if is_bad(report) else None


def explain(report: ModelReport) -> Trouble:
    """Return the failure of a model and the remedy, even if the failure was expected."""
    if report.error is not None:
        return _of_error(report.error)
    if report.comparison is not None and report.comparison.fails:
        return _of_comparison(report.comparison)
    if report.stage is Stage.CHECK and (check := failed_check(report)) is not None:
        return _of_check(check)
    failure = report.verdict.first_failure if report.verdict is not None else None
    if failure is None and report.verdict is not None and report.verdict.unproven:
        return _of_unproven(report.verdict.unproven[0])
    if failure is None and (severe := severe_findings(report)):
        return Trouble(what=severe[0].words, advice=severe[0].advice)
    return _of_failure(failure) if failure else Trouble(what=f"failed in stage {report.stage.value}")


def failed_check(report: ModelReport) -> CheckResult | None:
    """Return the first check that fails a model."""
    return next((result for result in report.checks if result.fails), None)


def _of_check(check: CheckResult) -> Trouble:
    if check.failure is None or check.word == "xpassed":
        advice = "where it is mended, take its 'xfail' out of the zoo file"
        return Trouble(what=f"{check.name}: {check.words}", advice=advice)
    found = _of_failure(check.failure)
    return replace(found, what=f"{check.name}: {found.what}")


def _of_comparison(comparison: Comparison) -> Trouble:
    first = comparison.first
    if first is None:
        return Trouble(what=f"{comparison.verdict.value}: {'; '.join(comparison.notes) or 'there is no baseline'}")
    where = ", ".join(filter(None, (first.operation, first.source_line)))
    what, cause = f"{first.change.value}: {first.message}", "; ".join(comparison.axes)
    if comparison.fails_outputs and comparison.outputs is not None:
        what = f"outputs {comparison.outputs.words}; what differs first is {what}"
    return Trouble(what=what, where=where, place=first.source_place, cause=cause)


def _of_unproven(one: Unproven) -> Trouble:
    where = ", ".join(filter(None, (one.operation, one.source_line)))
    advice = "leave 'unproven' out of --lens-fail-on if this is as it should be"
    return Trouble(what=f"unproven: {one.message}", where=where, place=one.source_place, advice=advice)


def _of_failure(failure: Failure) -> Trouble:
    where = ", ".join(filter(None, (failure.operation, failure.source_line)))
    details = {"values": failure.values, "cause": failure.cause, "advice": failure.advice}
    return Trouble(what=failure.message, where=where, place=failure.source_place, **details)


def _of_error(error: ErrorRecord) -> Trouble:
    is_from_pytest = error.stage is Stage.DONE
    what = ": ".join(filter(None, ("" if is_from_pytest else error.type, error.message))) or error.type
    place = None if error.type in ("BaselineError", "UnwritableError") else error.source_place
    return Trouble(what=what, where=str(place or ""), place=place, advice=advice_on(error))


def advice_on(error: ErrorRecord) -> str:
    """Return what to do about an error."""
    return _ADVICE_BY_TYPE.get(error.type) or _ADVICE.get(error.stage, "")
