"""The terminal report: the table of models, advice for failed ones, and the details of ``-v`` and ``-vv``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Final

from tabulate import tabulate

from pytest_torchlens.draw.text import duration
from pytest_torchlens.draw.text import in_ascii
from pytest_torchlens.draw.text import magnitude
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import short_place
from pytest_torchlens.draw.text import shorten
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import byte_size
from pytest_torchlens.records import checks_text
from pytest_torchlens.records import count_text
from pytest_torchlens.report.layer_table import Costs
from pytest_torchlens.report.summary import counts
from pytest_torchlens.report.summary import failed_at
from pytest_torchlens.report.summary import failed_how
from pytest_torchlens.report.summary import is_bad
from pytest_torchlens.report.summary import more_calls
from pytest_torchlens.report.summary import severe_findings
from pytest_torchlens.report.summary import status
from pytest_torchlens.report.summary import status_text
from pytest_torchlens.report.summary import told_once
from pytest_torchlens.report.summary import trouble

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Iterable
    from collections.abc import Sequence

    from pytest_torchlens.records import HistoryRecord
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import PartVerdict
    from pytest_torchlens.records import Verdict

    _Columns = dict[str, Callable[[ModelReport], str]]


_MOST: Final = 5

_LONGEST: Final = 200

_ALL: Final = 2
"""Minimum verbosity that lists single operations."""


def terminal_table(
    models: Iterable[ModelReport],
    width: int = 100,
    ascii: bool = False,  # noqa: A002 - the caller's word
    *,
    top: int | None = None,
    told: Collection[int] = (),
) -> str:
    """Return one line for each model, then the failure, its place and the remedy for each failed model.

    Parameters
    ----------
    models
        The models in the order of the run.
    width
        Width of the terminal; narrow ones get shorter names and fewer columns.
    ascii
        Whether only ASCII may be written.
    top
        Maximum number of lines for models that did not fail; None for all.  Failed models are always shown.
    told
        Ids of the reports whose failures pytest has told: they get the line alone.
    """
    every = list(models)
    firsts = told_once(every)
    shown, hidden = _most_important([report for report, _ in firsts], top)
    writer = _TerminalWriter(width, ascii, {id(report): more for report, more in firsts if more})
    parts = [writer.table(shown), *(writer.hidden_line(hidden) if hidden else ())]
    parts += writer.unproven_lines(every) + writer.severe_lines(every)
    parts += [writer.trouble(report) for report, _ in firsts if is_bad(report) and id(report) not in told]
    text = "\n".join(parts)
    return in_ascii(text) if ascii else text


def one_line(models: Sequence[ModelReport]) -> str:
    """Return how many models have each status: ``"3 models: 1 unproven, 2 passed"``.

    It is empty if none was validated: pytest's own last line has their number.
    """
    told = ", ".join(f"{count} {word}" for word, count in counts(models).items())
    return f"{count_text(len(models), 'model')}: {told}" if any(report.verdict for report in models) else ""


def _most_important(models: list[ModelReport], top: int | None) -> tuple[list[ModelReport], int]:
    good = [report for report in models if not is_bad(report)]
    top_ids = {id(report) for report in good[:top]}
    shown = [report for report in models if is_bad(report) or id(report) in top_ids]
    return shown, len(models) - len(shown)


class _TerminalWriter:
    def __init__(self, width: int, ascii_only: bool, more_calls_by_id: dict[int, int]) -> None:
        self.width = width
        self._more = more_calls_by_id
        """Further calls that fail by the same fault, by the id of the report."""
        self.none = "-" if ascii_only else "–"
        self.gap = "..." if ascii_only else "…"

    def table(self, models: Sequence[ModelReport]) -> str:
        """Return the widest table that fits: shorten names first, then drop columns."""
        columns = self._columns()
        if not any(report.checks for report in models):
            del columns["checks"]
        longest = max((len(_name(report)) for report in models), default=0)
        for given_up in (None, *_DISPENSABLE):
            columns.pop(given_up or "", None)
            room = self.width - self._width_beside(models, columns)
            if room >= min(longest, _COMFORTABLE_NAME):
                break
        columns["model"] = lambda report: shorten(_name(report), max(room, _SHORTEST_NAME), self.gap)
        return self._tabulate(models, columns)

    def _width_beside(self, models: Sequence[ModelReport], columns: _Columns) -> int:
        """Return the width of all columns except the names."""
        nameless = self._tabulate(models, columns | {"model": lambda report: ""})
        return max(map(len, nameless.splitlines())) - len("model")

    def hidden_line(self, count: int) -> list[str]:
        return [f"{self.gap} and {count:,} more, none of which failed"]

    def unproven_lines(self, models: Sequence[ModelReport]) -> list[str]:
        """Return each reason for an unproven verdict once, with the first model, operation and line."""
        places: dict[str, list[str]] = {}
        for report in models:
            for one in report.verdict.unproven if report.verdict is not None and not is_bad(report) else ():
                place = ", ".join(filter(None, (_name(report), one.operation, one.source_line)))
                places.setdefault(one.message, []).append(place)
        ordered = sorted(places.items(), key=lambda item: -len(item[1]))
        lines = [f"unproven: {self._line(reason)} (in {first})" for reason, (first, *_) in ordered[:_MOST_REASONS]]
        if len(ordered) > _MOST_REASONS:
            lines.append(f"unproven: {len(ordered) - _MOST_REASONS:,} more reasons")
        return lines

    def severe_lines(self, models: Sequence[ModelReport]) -> list[str]:
        """Return one line for each audit finding of high severity, up to a limit."""
        found = [(report, one) for report in models for one in severe_findings(report)]
        lines = [f"high: {_name(report)}: {self._line(one.words)}" for report, one in found[:_MOST_REASONS]]
        if len(found) > _MOST_REASONS:
            lines.append(f"high: {count_text(len(found) - _MOST_REASONS, 'more finding')}")
        return lines

    def trouble(self, report: ModelReport) -> str:
        """Return two to four lines about a failed model."""
        found = trouble(report)
        if found is None:
            return ""
        lines = [f"\n{_name(report)} FAILED {failed_how(report)}: {self._line(found.what)}"]
        details = {"where": found.where, "values": found.values, "cause": found.cause, "to do": found.advice}
        details["also"] = self._more_calls(report)
        lines += [f"  {word}: {self._line(text)}" for word, text in details.items() if text]
        return "\n".join(lines)

    def _num_calls(self, report: ModelReport) -> str:
        more = self._more.get(id(report), 0)
        return f" ({count_text(more + 1, 'call')})" if more else ""

    def _more_calls(self, report: ModelReport) -> str:
        return more_calls(self._more.get(id(report), 0))

    def _line(self, text: str) -> str:
        first, *rest = text.strip().splitlines() or [""]
        return shorten(printable(first), _LONGEST_LINE, self.gap) + (f" {self.gap}" if rest else "")

    def _tabulate(self, models: Sequence[ModelReport], columns: _Columns) -> str:
        rows = [list(columns), *([cell(report) for cell in columns.values()] for report in models)]
        # A row instead of tabulate's own headings, which are two columns wider than their words.
        rows.insert(1, ["-" * max(map(len, column)) for column in zip(*rows, strict=True)])
        align = ["left" if header in {"model", "verdict", "checks"} else "right" for header in columns]
        return tabulate(rows, tablefmt="plain", colalign=align, disable_numparse=True)

    def _columns(self) -> _Columns:
        return {
            "model": _name,
            "params": self._of_history(lambda history: magnitude(history.total_params)),
            "ops": self._of_history(lambda history: f"{history.num_operations:,}"),
            "layers": self._of_history(lambda history: f"{history.num_layers:,}"),
            "fwd ms": lambda report: self.none if report.forward_ms is None else f"{report.forward_ms:,.1f}",
            "act. MB": self._of_history(lambda history: f"{history.tensor_fsize_total / _MEBIBYTE:,.1f}"),
            "verdict": lambda report: _verdict(report) + self._num_calls(report),
            "checked": self._of_verdict(lambda verdict: f"{verdict.operations_checked:,}"),
            "edges": self._of_verdict(lambda verdict: f"{verdict.edges_checked:,}"),
            "checks": lambda report: checks_text(report.checks) or self.none,
        }

    def _of_history(self, cell: Callable[[HistoryRecord], str]) -> Callable[[ModelReport], str]:
        return lambda report: self.none if report.history is None else cell(report.history)

    def _of_verdict(self, cell: Callable[[Verdict], str]) -> Callable[[ModelReport], str]:
        # A failed verdict is falsy, so compare with None.
        return lambda report: self.none if report.verdict is None else cell(report.verdict)


def _name(report: ModelReport) -> str:
    return printable(f"{report.zoo}:{report.name}" if report.zoo else report.name)


def _verdict(report: ModelReport) -> str:
    """Return the status, the number of severe findings, and the operations equal only within tolerance."""
    if is_bad(report):
        return f"FAILED {failed_at(report)}"
    if report.outcome is not Outcome.PASSED or report.verdict is None:
        return status(report)
    tolerated = report.verdict.tolerated
    return status_text(report) + (f" ({tolerated:,} ops)" if tolerated else "")


def verbose_text(report: ModelReport, verbosity: int, *, ascii: bool = False) -> str:  # noqa: A002 - as in the table
    """Return a model's name and the lines under it.

    Parameters
    ----------
    report
        The report; it needs its operations if `verbosity` is 2 or more.
    verbosity
        1 lists inputs, parts of the verdict, time and memory; 2 also the slowest and the largest operations.
    ascii
        Whether only ASCII may be written.
    """
    facts = [*_model(report), *(_operations(report) if verbosity >= _ALL else ())]
    lines = [f"  {name:<12} {shorten(printable(text), _LONGEST)}" for name, text in facts if text]
    text = "\n".join([printable(f"{report.zoo}:{report.name}"), *lines])
    return in_ascii(text) if ascii else text


def _model(report: ModelReport) -> Iterator[tuple[str, str]]:
    yield "inputs", ", ".join(report.inputs)
    yield "outputs", ", ".join(report.outputs)
    for part in report.verdict.parts if report.verdict is not None else ():
        yield part.name, _part(part)
    for check in report.checks:
        yield f"check {check.name}", f"{check.words} ({check.seconds:,.1f} s)"
        yield from (("", note) for note in check.notes)
        yield from (("", f"not looked at: {text}") for text in check.unseen)
    yield "time", _time(report)
    yield "cost", _cost(report)
    for finding in report.findings:
        yield f"audit {finding.severity.value}", finding.words
    for note in report.notes:
        yield "note", note


def _part(part: PartVerdict) -> str:
    """Return a part's status with its counts, or the reason why nothing was counted."""
    counts = [f"{part.checked:,} {part.unit}"] if part.checked else []
    if part.exempt:
        counts.append(f"{sum(part.exempt.values()):,} exempt")
    if part.tolerated:
        counts.append(f"{part.tolerated:,} within tolerance only")
    if part.num_failures:
        counts.append(f"{part.num_failures:,} failed")
    return ": ".join(filter(None, [part.status.value, ", ".join(counts) or part.reason]))


def _time(report: ModelReport) -> str:
    times = [
        f"{report.forward_ms:,.1f} ms plain, median of {report.forward_runs}" if report.forward_ms is not None else "",
        f"{report.record_ms:,.1f} ms recorded" if report.record_ms is not None else "",
        f"{report.verdict.seconds:,.1f} s validated" if report.verdict is not None else "",
        f"{report.seconds:,.1f} s in all" if report.seconds else "",
    ]
    return "; ".join(filter(None, times))


def _cost(report: ModelReport) -> str:
    cost = report.measurements
    if cost is None:
        return ""
    total = f"{magnitude(cost.modules[0].flops)} FLOPs" if cost.modules else ""
    peak = f"peak memory {byte_size(cost.peak_bytes)} computed" if cost.peak_bytes else ""
    measured = f"{byte_size(cost.measured_peak_bytes)} measured" if cost.measured_peak_bytes is not None else ""
    return ", ".join(filter(None, [total, peak, measured]))


def _operations(report: ModelReport) -> Iterator[tuple[str, str]]:
    costs = Costs.of(report)
    if costs is None:
        return
    for op in sorted(costs.calls, key=costs.seconds, reverse=True)[:_MOST]:
        share = costs.seconds(op) / (costs.total or 1.0)
        yield "slowest", f"{op.label}: {duration(costs.seconds(op))} ({share:.0%}), {short_place(op)}"
    made = [op for op in costs.history.operations if op.call_id >= 0]
    for op in sorted(made, key=lambda op: op.tensor_fsize, reverse=True)[:_MOST]:
        yield (
            "largest",
            f"{op.label}: {byte_size(op.tensor_fsize)} ({shape_text(op.tensor_shape)}), {short_place(op)}",
        )
    kinds = (f"{bar.name} {bar.share:.0%} ({count_text(bar.count, 'call')})" for bar in costs.by_type()[:_MOST])
    yield "kinds", ", ".join(kinds)


_MEBIBYTE = 2**20

_MOST_REASONS = 10
"""Maximum number of unproven reasons, and of severe findings, below the table."""
_SHORTEST_NAME = 12

_COMFORTABLE_NAME = 24

_LONGEST_LINE = 240

# Dropped in this order on narrow terminals.
_DISPENSABLE = ("layers", "act. MB", "fwd ms", "edges", "params")
