"""Results of many models as a table in a file, one row a model: what a sweep leaves behind."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from pytest_torchlens.report.files import write_file

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchlens.records import Environment
    from pytest_torchlens.records import ModelReport

COLUMNS = (
    "zoo model inputs weights params operations layers edges flops forward_ms validate_ratio seconds verdict reason "
    "torch library python"
).split()
"""``validate_ratio`` is the time of validating in plain forward passes, ``seconds`` the wall time of the whole item."""
LONGEST = 200
"""Characters of a reason."""


class ResultTable:
    """A CSV file that is whole after each row; a model's new row takes the place of its old one."""

    def __init__(self, path: Path, environment: Environment) -> None:
        self._path = path
        self._environment = environment
        self._rows: dict[tuple[str, str], dict[str, str]] = {}
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                self._rows = {(row["zoo"], row["model"]): row for row in csv.DictReader(file)}

    def add(self, report: ModelReport) -> None:
        """Put a model's row in, and write the file."""
        self._rows[report.zoo, report.name] = row_of(report, self._environment)
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows[key] for key in sorted(self._rows))
        write_file(self._path, text.getvalue())


def row_of(report: ModelReport, environment: Environment) -> dict[str, str]:
    """Return a model's row; a cell is empty where nothing was measured."""
    row = {
        "zoo": report.zoo,
        "model": report.name,
        "inputs": "; ".join(report.inputs),
        "weights": report.weights,
        "seconds": f"{report.seconds:.1f}",
        "verdict": _verdict(report),
        "reason": " ".join(_reason(report).split())[:LONGEST],
        "torch": environment.torch,
        "library": _library(report.zoo, environment),
        "python": environment.python,
    }
    if history := report.history:
        row |= {
            "params": str(history.total_params),
            "operations": str(history.num_operations),
            "layers": str(history.num_layers),
        }
    if report.forward_ms is not None:
        row["forward_ms"] = f"{report.forward_ms:.2f}"
    if report.flops is not None:
        row["flops"] = str(report.flops)
    if verdict := report.verdict:
        row["edges"] = str(verdict.edges_checked)
        if report.forward_ms:
            row["validate_ratio"] = f"{verdict.seconds * 1e3 / report.forward_ms:.1f}"
    return row


def _library(zoo: str, environment: Environment) -> str:
    """Return the version of the library that a zoo is named after; empty for a zoo of the user's own."""
    return next((f"{name} {version}" for name, version in environment.packages.items() if zoo.startswith(name)), "")


def _verdict(report: ModelReport) -> str:
    """Return the verdict's word, or how far a model without one came."""
    if report.verdict is not None:
        return report.verdict.status.value
    return f"{report.outcome.value} in {report.stage.value}" if report.error else report.outcome.value


def _reason(report: ModelReport) -> str:
    if report.error:
        return f"{report.error.type}: {report.error.message}"
    if report.verdict is not None and not report.verdict:
        return report.verdict.words
    return "; ".join(report.notes)
