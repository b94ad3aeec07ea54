"""The run as Markdown, for the summary of a CI job or a comment on a change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Final

from pytest_torchlens.draw.text import counted
from pytest_torchlens.draw.text import magnitude
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shortened
from pytest_torchlens.records import Severity
from pytest_torchlens.records import byte_size
from pytest_torchlens.report.findings import line
from pytest_torchlens.report.findings import severities
from pytest_torchlens.report.summary import counts
from pytest_torchlens.report.summary import failed_how
from pytest_torchlens.report.summary import is_bad
from pytest_torchlens.report.summary import status
from pytest_torchlens.report.summary import trouble

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import RunReport

MOST_BYTES: Final = 1_000_000
"""A step summary of GitHub's holds 1 MiB."""
_MOST_ROWS: Final = 300
_MOST_FAILURES: Final = 50
_LONGEST: Final = 500
_SIGNS: Final = {"passed": "✅", "passed-with-tolerance": "✅", "failed": "❌", "xfailed": "⚠️", "xpassed": "⚠️"}
_COLUMNS: Final = "| model | verdict | params | operations | activations | forward ms | checked | edges |"
_NONE: Final = "–"


def markdown(run: RunReport) -> str:
    """Return a heading with counts, what failed and why, and a table, failed models first."""
    text = "\n".join(_lines(run)) + "\n"
    if len(text.encode()) <= MOST_BYTES:
        return text
    return f"{_heading(run)}\n\nMore than {byte_size(MOST_BYTES)}: the report has the rest.\n"


def _lines(run: RunReport) -> Iterator[str]:
    yield _heading(run)
    yield ""
    bad = [model for model in run.models if is_bad(model)]
    for model in bad[:_MOST_FAILURES]:
        yield from _failure(model)
    if len(bad) > _MOST_FAILURES:
        yield f"\nand {counted(len(bad) - _MOST_FAILURES, 'more failed model')}\n"
    yield from _audit(run)
    models = sorted(run.models, key=lambda model: not is_bad(model))
    yield f"\n{_COLUMNS}\n{re.sub(r'[^|]+', '---', _COLUMNS)}"
    yield from map(_row, models[:_MOST_ROWS])
    if len(models) > _MOST_ROWS:
        yield f"\nand {counted(len(models) - _MOST_ROWS, 'more model')}"
    yield f"\n<sub>{_text(_made_how(run))}</sub>"


def _heading(run: RunReport) -> str:
    said = ", ".join(f"{_sign(word)} {count:,} {word}" for word, count in counts(run.models).items())
    return f"### pytest-torchlens: {said or 'no model ran'}"


def _sign(word: str) -> str:
    return _SIGNS.get(word, "⚪")


def _failure(model: ModelReport) -> Iterator[str]:
    found = trouble(model)
    if found is None:
        return
    yield f"- ❌ **{_text(_name(model))}** {_text(failed_how(model))}: {_text(found.what)}"
    told = {"where": found.where, "cause": found.cause, "what to do": found.advice}
    yield from (f"  - {word}: {_text(text)}" for word, text in told.items() if text)


def _audit(run: RunReport) -> Iterator[str]:
    """Yield how much the audit found, and what matters most of it."""
    graves = [(model, it) for model in run.models for it in model.findings if it.severity is Severity.HIGH]
    for model, finding in graves[:_MOST_FAILURES]:
        yield f"- ⚠️ **{_text(_name(model))}**: {_text(line(finding))}"
    if found := severities(run.models):
        yield f"\nAudit findings: {found}; the models' pages have them."


def _row(model: ModelReport) -> str:
    history, verdict = model.history, model.verdict
    cells = [
        _text(_name(model)),
        f"{_sign(status(model))} {status(model)}",
        magnitude(history.total_params) if history else _NONE,
        f"{history.num_operations:,}" if history else _NONE,
        byte_size(history.tensor_fsize_total) if history else _NONE,
        f"{model.forward_ms:,.1f}" if model.forward_ms is not None else _NONE,
        f"{verdict.operations_checked:,}" if verdict is not None else _NONE,
        f"{verdict.edges_checked:,}" if verdict is not None else _NONE,
    ]
    return f"| {' | '.join(cells)} |"


def _made_how(run: RunReport) -> str:
    env = run.environment
    parts = [f"torch {env.torch}", f"Python {env.python}", env.device, env.cpu_capability, f"{env.num_threads} threads"]
    return ", ".join(filter(None, [*parts, run.created, run.command]))


def _name(model: ModelReport) -> str:
    return f"{model.zoo}:{model.name}" if model.zoo else model.name


def _text(text: str) -> str:
    """Return a text that Markdown and HTML take as it stands, on one line."""
    line = shortened(printable(" ".join(text.split())), _LONGEST)
    return re.sub(r"([\\`*_{}\[\]<>()#!|~@&$])", lambda found: f"&#{ord(found.group())};", line)
