"""A model's failure as pytest reports it: its text, its traceback, and its properties in JUnit XML."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import _pytest
import pluggy

from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.baseline.wording import comparison_text
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.plugin.settings import command_options
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    import pytest
    from _pytest._code.code import ExceptionRepr
    from _pytest._code.code import Traceback
    from _pytest._code.code import TracebackEntry

    from pytest_torchlens.records import CheckResult
    from pytest_torchlens.records import ErrorRecord
    from pytest_torchlens.records import Failure
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import PartVerdict


MOST_FAILURES = 3
"""Failures of a part in pytest's text; the report has ten."""
_SHOWN_AS_MESSAGE = ("ZooError", "BaselineError", "UnwritableError")


def failure_text(report: ModelReport, config: pytest.Config) -> str:
    """Return the error of a worker process, or the failure of a validation or comparison; empty if there is none.

    Control characters are escaped: a model's message cannot move the cursor or change the colours of a terminal.
    """
    text = _failure_text(report, config)
    if text.replace("\n", "").isprintable():
        return text
    from pytest_torchlens.draw.text import printable

    return "\n".join(printable(line.expandtabs()) for line in text.split("\n"))


def _failure_text(report: ModelReport, config: pytest.Config) -> str:
    if report.error:
        return _error(report, report.error)
    if report.comparison is not None and report.comparison.fails:
        name, key = f"{report.zoo}:{report.name}", key_of(report.zoo, report.name)
        from pytest_torchlens.report.summary import command_name

        return comparison_text(report.comparison, name, key, command_options(config), command_name(report))
    if report.outcome is Outcome.FAILED and report.stage is Stage.CHECK:
        return checks_failed_text(report.checks, f"{report.zoo}:{report.name}", partial(_to_reproduce, report, config))
    if report.verdict is None or report.outcome is not Outcome.FAILED:
        return ""
    failed = report.verdict.failed_parts
    if not failed:
        return _failed_by_condition(report)
    names = " and ".join(part.name for part in failed)
    lines = [f"{report.zoo}:{report.name}: validation failed in {names}"]
    for part in failed:
        lines += ["", *part_text(part)]
    return "\n".join(lines)


def checks_failed_text(
    results: Sequence[CheckResult], name: str, to_reproduce: Callable[[CheckResult], str] = lambda result: ""
) -> str:
    """Return what fails a model: each failed check, with its place, what to do, and the command that reproduces it."""
    failed = [result for result in results if result.fails]
    lines = [f"{name}: failed {', '.join(result.name for result in failed)} (--lens-checks)"]
    for result in failed:
        if result.failure is None or result.word == "xpassed":
            lines += ["", f"{result.name}: {result.words}"]
            continue
        sentence = known_checks()[result.name].sentence if result.name in known_checks() else ""
        facts = {
            "values": result.failure.values,
            "notes": "; ".join(result.notes),
            "not looked at": "; ".join(result.unseen),
            "to reproduce": to_reproduce(result),
        }
        lines += ["", f"{result.name}: {sentence}" if sentence else result.name, *_failure(result.failure)]
        lines += [f"      {word}: {text}" for word, text in facts.items() if text]
    return "\n".join(lines)


def _to_reproduce(report: ModelReport, config: pytest.Config, result: CheckResult) -> str:
    from pytest_torchlens.report.summary import to_reproduce

    command = to_reproduce(report, result)
    return command and command + command_options(config, only_root=True)


def _failed_by_condition(report: ModelReport) -> str:
    """Return what ``--lens-fail-on`` fails in a model whose validation did not fail: unproven, or a severe finding."""
    from pytest_torchlens.report.summary import explain

    found = explain(report)
    details = {"at": found.where, "what to do": found.advice}
    lines = [
        f"{report.zoo}:{report.name}: {found.what}",
        *(f"  {word}: {text}" for word, text in details.items() if text),
    ]
    return "\n".join(lines)


def _error(report: ModelReport, error: ErrorRecord) -> str:
    if error.type in _SHOWN_AS_MESSAGE:
        return error.message
    if error.traceback:
        return f"{error.traceback}{_end(error)}"
    return f"{report.zoo}:{report.name}: {error.type} in stage {error.stage.value!r}: {error.message}{_advice(error)}"


def part_text(part: PartVerdict) -> list[str]:
    """Return the failures of a part as lines."""
    lines = [f"{part.name}: {part.num_failures} of {part.checked} {part.unit} failed"]
    for failure in part.failures[:MOST_FAILURES]:
        lines += _failure(failure)
    if part.num_failures > MOST_FAILURES:
        lines.append(f"  and {part.num_failures - MOST_FAILURES} more; the first in execution order stands first")
    return lines


def _failure(failure: Failure) -> list[str]:
    facts = {"at": failure.source_line, "likely cause": failure.cause, "what to do": failure.advice}
    head = f"{failure.operation}: {failure.message}" if failure.operation else failure.message
    return [f"  {head}", *(f"      {name}: {text}" for name, text in facts.items() if text)]


def junit_properties(report: ModelReport) -> list[tuple[str, str]]:
    """Return the model's properties for JUnit XML, as text."""
    found: dict[str, object] = {"status": report.stage.value if report.error else "recorded"}
    if history := report.history:
        found.update(ops=history.num_operations, layers=history.num_layers, params=history.total_params)
    if (verdict := report.verdict) is not None:
        found.update(
            status=verdict.status.value,
            ops_checked=verdict.operations_checked,
            edges_checked=verdict.edges_checked,
        )
    found |= {f"check.{result.name}": result.word for result in report.checks}
    if comparison := report.comparison:
        found["baseline"] = comparison.verdict.value
    if cost := report.measurements:
        found["peak_bytes"] = cost.peak_bytes
    if report.flops is not None:
        found["flops"] = report.flops
    if report.forward_ms is not None:
        found["forward_ms"] = f"{report.forward_ms:.3f}"
    if report.graph:
        found["graph"] = report.graph
    return [(f"lens.{name}", str(value)) for name, value in found.items()]


def has_model_traceback(error: ErrorRecord) -> bool:
    """Whether an error has a traceback from the model."""
    return bool(error.traceback) and error.type not in _SHOWN_AS_MESSAGE


def represent_text(error: ErrorRecord, place: Path) -> ExceptionRepr:
    """Return a representation of a recorded exception, with the line that pytest's summary and JUnit XML show.

    Parameters
    ----------
    place
        The file to name if the traceback names none.
    """
    from _pytest._code.code import ReprEntryNative
    from _pytest._code.code import ReprExceptionInfo
    from _pytest._code.code import ReprFileLocation
    from _pytest._code.code import ReprTraceback

    from pytest_torchlens.records import SourcePlace

    text = f"{error.traceback}{_end(error)}\n"
    frame = error.source_place or SourcePlace(str(place), 1)
    crash = ReprFileLocation(frame.file, frame.line, f"{error.type}: {error.message}".removesuffix(": "))
    return ReprExceptionInfo(ReprTraceback([ReprEntryNative([text])], None, "native"), crash)


def _end(error: ErrorRecord) -> str:
    return f"raised in stage {error.stage.value!r}{_advice(error)}"


def _advice(error: ErrorRecord) -> str:
    from pytest_torchlens.report.summary import advice_on

    advice = advice_on(error)
    return advice and f"\nwhat to do: {advice}"


def represent(
    excinfo: pytest.ExceptionInfo[BaseException], error: ErrorRecord, place: Path, config: pytest.Config
) -> ExceptionRepr:
    """Return a representation of a model's exception with the model's frames and the stage."""
    style: Any = config.getoption("tbstyle", "auto")
    is_odd = str(excinfo.value) != error.message  # the record replaced characters that cannot be encoded
    if is_odd or (style == "native" and not config.getoption("fulltrace", False)):
        return represent_text(error, place)
    text = excinfo.getrepr(
        style="short" if style == "auto" else style,
        showlocals=config.getoption("showlocals", False),
        tbfilter=False if config.getoption("fulltrace", False) else _own_frames,
    )
    text.addsection("lens", _end(error))
    return text


def _own_frames(excinfo: pytest.ExceptionInfo[BaseException]) -> Traceback:
    from pytest_torchlens.run.errors import is_noise

    innermost = str(excinfo.traceback[-1].path)
    runner = tuple(f"{Path(str(package.__file__)).parent}/" for package in (_pytest, pluggy))

    def is_own(entry: TracebackEntry) -> bool:
        path = str(entry.path)
        return not path.startswith(runner) and not is_noise(path, innermost)

    return excinfo.traceback.filter(is_own)
