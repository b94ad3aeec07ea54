"""What ``-v`` and ``-vv`` tell of a model under the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Final

from pytest_torchlens.draw.text import counted
from pytest_torchlens.draw.text import duration
from pytest_torchlens.draw.text import in_ascii
from pytest_torchlens.draw.text import magnitude
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shape_text
from pytest_torchlens.draw.text import short_place
from pytest_torchlens.draw.text import shortened
from pytest_torchlens.records import byte_size
from pytest_torchlens.report.layer_table import Costs
from pytest_torchlens.report.summary import line

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import PartVerdict

_MOST: Final = 5
_LONGEST: Final = 200
_ALL: Final = 2
"""Verbosity that names single operations."""


def verbose_text(report: ModelReport, verbosity: int, *, ascii: bool = False) -> str:  # noqa: A002 - as of the table
    """Return a model's name and the lines under it.

    Parameters
    ----------
    report
        With its operations, where `verbosity` is 2 or more.
    verbosity
        1 tells of inputs, parts of the verdict, time and memory; 2 also of the slowest and the largest operations.
    ascii
        Whether only ASCII may be written.
    """
    told = [*_model(report), *(_operations(report) if verbosity >= _ALL else ())]
    lines = [f"  {name:<12} {shortened(printable(text), _LONGEST)}" for name, text in told if text]
    text = "\n".join([printable(f"{report.zoo}:{report.name}"), *lines])
    return in_ascii(text) if ascii else text


def _model(report: ModelReport) -> Iterator[tuple[str, str]]:
    yield "inputs", ", ".join(report.inputs)
    yield "outputs", ", ".join(report.outputs)
    for part in report.verdict.parts if report.verdict is not None else ():
        yield part.name, _part(part)
    yield "time", _time(report)
    yield "cost", _cost(report)
    for finding in report.findings:
        yield f"audit {finding.severity.value}", line(finding)
    for note in report.notes:
        yield "note", note


def _part(part: PartVerdict) -> str:
    """Return a part's word, and what was counted or why nothing was."""
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
        yield "slowest", f"{op.label}: {duration(costs.seconds(op))} ({share:.0%}), {short_place(op.source_line)}"
    made = [op for op in costs.history.operations if op.call_id >= 0]
    for op in sorted(made, key=lambda op: op.tensor_fsize, reverse=True)[:_MOST]:
        yield (
            "largest",
            f"{op.label}: {byte_size(op.tensor_fsize)} ({shape_text(op.tensor_shape)}), {short_place(op.source_line)}",
        )
    kinds = (f"{bar.name} {bar.share:.0%} ({counted(bar.count, 'call')})" for bar in costs.by_type()[:_MOST])
    yield "kinds", ", ".join(kinds)
