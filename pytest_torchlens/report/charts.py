"""Curves of a page: memory over the pass, activations by depth."""

from __future__ import annotations

import math
from typing import Any

from pytest_torchlens.records import ActivationStatistics
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import ModelReport
from pytest_torchlens.report.inline import row_id


def charts(report: ModelReport) -> dict[str, Any]:
    """Return the data of each curve that there are numbers for: labels, rows of the table, and the series."""
    if report.history is None:
        return {}
    rows = {op.label: row_id(op) for op in report.history.operations}
    found: dict[str, Any] = {}
    if report.measurements and report.measurements.live_bytes:
        found["memory"] = _memory(report.measurements, rows)
    elif sizes := _sizes(report.history, rows):
        found["sizes"] = sizes
    if report.statistics and report.statistics.operations:
        found |= _statistics(report.statistics, rows)
    return found


def _memory(measured: Measurements, rows: dict[str, str]) -> dict[str, Any]:
    return _chart(measured.operations, rows, {"alive": measured.live_bytes})


def _sizes(history: HistoryRecord, rows: dict[str, str]) -> dict[str, Any]:
    operations = [op for op in history.operations if op.call_id >= 0]
    return _chart(tuple(op.label for op in operations), rows, {"size": tuple(op.tensor_fsize for op in operations)})


def _statistics(found: ActivationStatistics, rows: dict[str, str]) -> dict[str, Any]:
    above = tuple(mean + std for mean, std in zip(found.mean, found.std, strict=True))
    below = tuple(mean - std for mean, std in zip(found.mean, found.std, strict=True))
    values = {"max": found.maximum, "mean + std": above, "mean": found.mean, "mean − std": below, "min": found.minimum}
    shares = {"zeros": found.zeros, "not finite": found.not_finite}
    return {"values": _chart(found.operations, rows, values), "shares": _chart(found.operations, rows, shares)}


def _chart(
    labels: tuple[str, ...], rows: dict[str, str], series: dict[str, tuple[float, ...] | tuple[int, ...]]
) -> dict[str, Any]:
    finite = {name: [_number(value) for value in values] for name, values in series.items()}
    return {"labels": labels, "rows": [rows.get(label, "") for label in labels], "series": finite}


def _number(value: float) -> float | None:
    """Return a number that JSON has, to five digits: a page shows no more."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
