"""Writes the run as Markdown for a CI summary, and failed or unproven models as GitHub annotations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from pytest_torchlens.draw.text import magnitude
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shorten
from pytest_torchlens.records import byte_size
from pytest_torchlens.records import count_checks
from pytest_torchlens.records import count_text
from pytest_torchlens.report.summary import counts
from pytest_torchlens.report.summary import failed_how
from pytest_torchlens.report.summary import is_bad
from pytest_torchlens.report.summary import more_calls
from pytest_torchlens.report.summary import severe_findings
from pytest_torchlens.report.summary import severities
from pytest_torchlens.report.summary import status
from pytest_torchlens.report.summary import status_text
from pytest_torchlens.report.summary import told_once
from pytest_torchlens.report.summary import trouble
from pytest_torchlens.report.summary import urgency

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import RunReport
    from pytest_torchlens.records import SourcePlace


MOST: Final = 10
"""GitHub shows at most ten errors per step."""

_TEXT: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}

_PROPERTY: Final = _TEXT | {":": "%3A", ",": "%2C"}


def markdown(run: RunReport) -> str:
    """Return a heading with counts, each failure with its cause, and a table with failed models first."""
    text = "\n".join(_lines(run)) + "\n"
    if len(text.encode()) <= MOST_BYTES:
        return text
    return f"{_heading(run)}\n\nMore than {byte_size(MOST_BYTES)}: the report has the rest.\n"


def _lines(run: RunReport) -> Iterator[str]:
    yield _heading(run)
    yield ""
    firsts = told_once(run.models)
    bad = [(model, more) for model, more in firsts if is_bad(model)]
    for model, more in bad[:_MOST_FAILURES]:
        yield from _failure(model, more)
    if len(bad) > _MOST_FAILURES:
        yield f"\nand {count_text(len(bad) - _MOST_FAILURES, 'more failed model')}\n"
    yield from _unproven(run)
    yield from _audit(run)
    yield from _checks(run)
    models = sorted(firsts, key=lambda item: urgency(item[0]))
    yield f"\n{_COLUMNS}\n{re.sub(r'[^|]+', '---', _COLUMNS)}"
    yield from (_row(*item) for item in models[:_MOST_ROWS])
    if len(models) > _MOST_ROWS:
        yield f"\nand {count_text(len(models) - _MOST_ROWS, 'more model')}"
    yield f"\n<sub>{_text(_environment_line(run))}</sub>"


def _heading(run: RunReport) -> str:
    summary = ", ".join(f"{_sign(word)} {count:,} {word}" for word, count in counts(run.models).items())
    return f"### pytest-torchlens: {summary or 'no model ran'}"


def _sign(word: str) -> str:
    return _SIGNS.get(word, "⚪")


def _failure(model: ModelReport, more: int) -> Iterator[str]:
    found = trouble(model)
    if found is None:
        return
    yield f"- ❌ **{_text(_name(model))}** {_text(failed_how(model))}: {_text(found.what)}"
    details = {"where": found.where, "cause": found.cause, "what to do": found.advice, "also": more_calls(more)}
    yield from (f"  - {word}: {_text(text)}" for word, text in details.items() if text)


def _unproven(run: RunReport) -> Iterator[str]:
    """Yield the first unproven checks of models that did not fail."""
    verdicts = [(model, model.verdict) for model in run.models if model.verdict is not None and not is_bad(model)]
    found = [(model, one) for model, verdict in verdicts for one in verdict.unproven]
    for model, one in found[:_MOST_FAILURES]:
        yield f"- 🟡 **{_text(_name(model))}** unproven: {_text(one.words)}"
    if len(found) > _MOST_FAILURES:
        yield f"- and {len(found) - _MOST_FAILURES:,} more"


def _audit(run: RunReport) -> Iterator[str]:
    """Yield the number of audit findings, and the most severe ones."""
    graves = [(model, it) for model in run.models for it in severe_findings(model)]
    for model, finding in graves[:_MOST_FAILURES]:
        yield f"- ⚠️ **{_text(_name(model))}**: {_text(finding.words)}"
    if found := severities(run.models):
        yield f"\nAudit findings: {found}; the models' pages have them."


def _checks(run: RunReport) -> Iterator[str]:
    """Yield how many models passed each check, and the failures that are not among those of models."""
    results = [(model, check) for model in run.models for check in model.checks]
    for name in dict.fromkeys(check.name for _, check in results):
        words = count_checks(check for _, check in results if check.name == name)
        yield f"- check `{_text(name)}`: {', '.join(f'{count:,} {word}' for word, count in words.items())}"


def _row(model: ModelReport, more: int) -> str:
    history, verdict = model.history, model.verdict
    cells = [
        _text(_name(model)),
        f"{_sign(status(model))} {status_text(model)}" + (f" ({count_text(more + 1, 'call')})" if more else ""),
        magnitude(history.total_params) if history else _NONE,
        f"{history.num_operations:,}" if history else _NONE,
        byte_size(history.tensor_fsize_total) if history else _NONE,
        f"{model.forward_ms:,.1f}" if model.forward_ms is not None else _NONE,
        f"{verdict.operations_checked:,}" if verdict is not None else _NONE,
        f"{verdict.edges_checked:,}" if verdict is not None else _NONE,
    ]
    return f"| {' | '.join(cells)} |"


def _environment_line(run: RunReport) -> str:
    env = run.environment
    parts = [f"torch {env.torch}", f"Python {env.python}", env.device, env.cpu_capability, f"{env.num_threads} threads"]
    return ", ".join(filter(None, [*parts, run.created, run.command]))


def _name(model: ModelReport) -> str:
    return f"{model.zoo}:{model.name}" if model.zoo else model.name


def _text(text: str) -> str:
    """Return a text on one line, escaped for Markdown and HTML."""
    line = shorten(printable(" ".join(text.split())), _LONGEST)
    return re.sub(r"([\\`*_{}\[\]<>()#!|~@&$])", lambda found: f"&#{ord(found.group())};", line)


def github_annotations(models: Iterable[ModelReport], root: Path) -> Iterator[str]:
    """Yield one error for each failed model and one warning for each unproven model, at most ten of each.

    Parameters
    ----------
    models
        The models of the run.
    root
        The repository root; places outside it appear only in the message.
    """
    models = list(models)
    bad = [(model, more) for model, more in told_once(models) if is_bad(model)]
    for model, more in bad[:MOST]:
        found = trouble(model)
        if found is None:
            continue
        place = _place(found.place, root) or {"file": model.nodeid.partition("::")[0]}
        title = f"lens: {model.zoo}:{model.name} failed {failed_how(model)}"
        message = "\n".join(filter(None, (found.what, found.where, found.cause, found.advice, more_calls(more))))
        properties = ",".join(f"{key}={_escape(value, _PROPERTY)}" for key, value in {**place, "title": title}.items())
        yield f"::error {properties}::{_escape(message, _TEXT)}"
    yield from _warnings([model for model in models if not is_bad(model)], root)


def _warnings(models: list[ModelReport], root: Path) -> Iterator[str]:
    """Yield one warning for each unproven model, at most ten."""
    verdicts = [(model, model.verdict) for model in models if model.verdict is not None]
    found = [(model, verdict.unproven[0]) for model, verdict in verdicts if verdict.unproven]
    for model, one in found[:MOST]:
        place = _place(one.source_place, root) or {"file": model.nodeid.partition("::")[0]}
        properties = {**place, "title": f"lens: {model.zoo}:{model.name} unproven"}
        text = ",".join(f"{key}={_escape(value, _PROPERTY)}" for key, value in properties.items())
        yield f"::warning {text}::{_escape(one.words, _TEXT)}"


def _place(place: SourcePlace | None, root: Path) -> dict[str, str]:
    """Return file and line of a place if its file is in the repository."""
    file = root / place.file if place else root
    if place is None or not file.is_file() or not file.resolve().is_relative_to(root):
        return {}
    return {"file": str(file.resolve().relative_to(root)), "line": str(place.line)}


def _escape(text: str, table: dict[str, str]) -> str:
    for char, escape in table.items():
        text = text.replace(char, escape)
    return text


MOST_BYTES: Final = 1_000_000
"""GitHub limits a step summary to 1 MiB."""

_MOST_ROWS: Final = 300

_MOST_FAILURES: Final = 50

_LONGEST: Final = 500

_SIGNS: Final = {
    "passed": "✅",
    "passed-with-tolerance": "✅",
    "unproven": "🟡",
    "failed": "❌",
    "xfailed": "⚠️",
    "xpassed": "⚠️",
}

_COLUMNS: Final = "| model | verdict | params | operations | activations | forward ms | checked | edges |"

_NONE: Final = "–"
