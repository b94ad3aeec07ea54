"""The results of many models as a CSV table, one row for each model."""

from __future__ import annotations

import codecs
import csv
import io
from typing import TYPE_CHECKING

from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage
from pytest_torchlens.records import checks_text
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import exclusive
from pytest_torchlens.records.files import why_no_path
from pytest_torchlens.report.summary import explain
from pytest_torchlens.report.summary import failed_how
from pytest_torchlens.report.summary import status_text

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from pytest_torchlens.records import Environment
    from pytest_torchlens.records import ModelReport

    Rows: TypeAlias = dict[tuple[str, str], dict[str, str]]


COLUMNS = (
    "zoo model inputs weights params operations layers edges flops forward_ms validate_ratio seconds verdict checks "
    "reason torch library python"
).split()
"""``validate_ratio`` is the time of validating in plain forward passes (empty if one took less than 0.005 ms),
``seconds`` the wall time of the whole item."""
LONGEST = 200
"""Characters of a reason."""


class TableError(Exception):
    """A file is not a results table; the message gives the reason and the fix."""


class ResultTable:
    """A CSV file that is complete after each row; a model's new row replaces its old one.

    Other columns and their values stay, also in the row of a model that runs again.

    Parameters
    ----------
    path
        Path of the file, created on first write.

    Raises
    ------
    TableError
        If the path is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read()

    def add(self, report: ModelReport, environment: Environment) -> None:
        """Put a model's row in, and write the file.

        Raises
        ------
        OSError, TableError
            If writing fails, or the file is no longer a results table; it is then unchanged.
        """
        with exclusive(self._path):
            self._add(report, environment)

    def _add(self, report: ModelReport, environment: Environment) -> None:
        self._read()  # keep rows that other processes have written since
        key = (report.zoo, report.name)
        own = {column: text for column, text in self._rows.get(key, {}).items() if column not in COLUMNS}
        self._rows[key] = own | row_of(report, environment)
        text = io.StringIO()
        text.write(_mark(self._path))
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_as_text, (self._rows[key] for key in sorted(self._rows))))
        write_atomically(self._path, text.getvalue())

    def _read(self) -> None:
        path = self._path
        if why := why_no_path(path):
            raise TableError(f"{str(path)!r} is not a valid path: {why}; name another file")
        try:
            self._columns, self._rows = _read(path)
        except UnicodeDecodeError:
            raise _not_a_table(path, "is not UTF-8 text") from None
        except csv.Error as error:
            raise _not_a_table(path, f"is not a CSV file ({error})") from None
        except OSError as error:
            raise TableError(f"{path} cannot be read ({error.strerror}): name another file") from None


def _read(path: Path) -> tuple[list[str], Rows]:
    """Return the columns and rows of a table, our missing columns last; without a file, our columns and no rows."""
    if path.exists() and not path.is_file():
        raise TableError(f"expected a file, got {path}, which is {'a folder' if path.is_dir() else 'not a plain file'}")
    try:
        file = path.open(encoding="utf-8-sig", newline="")  # Excel writes a byte order mark
    except FileNotFoundError:
        return COLUMNS, {}
    with file:
        lines = csv.reader(file, strict=True)
        columns = next(lines, COLUMNS)
        if why := _why_not_a_table(columns):
            raise _not_a_table(path, why)
        rows: Rows = {}
        for cells in filter(None, lines):
            row = _from_text(dict(zip(columns, cells, strict=False)))
            key = (row.get("zoo", ""), row.get("model", ""))
            if len(cells) > len(columns) or key in rows:
                raise TableError(
                    f"{path}:{lines.line_num}: {_row_fault(key, cells, columns)}: correct the row, or name another file"
                )
            rows[key] = row
    return list(dict.fromkeys([*columns, *COLUMNS])), rows


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that a spreadsheet would run."""


def _as_text(row: dict[str, str]) -> dict[str, str]:
    """Return a row whose own cells a spreadsheet shows as text: an apostrophe precedes what looks like a formula."""
    return row | {name: f"'{row[name]}" for name in COLUMNS if _is_formula(row.get(name, ""))}


def _from_text(row: dict[str, str]) -> dict[str, str]:
    quoted = [name for name in COLUMNS if row.get(name, "")[:1] == "'" and _is_formula(row[name])]
    return row | {name: row[name][1:] for name in quoted}


def _is_formula(cell: str) -> bool:
    return cell.lstrip("'").startswith(_FORMULA)


def _row_fault(key: tuple[str, str], cells: list[str], columns: list[str]) -> str:
    if len(cells) > len(columns):
        return f"expected at most {len(columns)} cells, got {len(cells)}"
    return f"expected one row for each model, got {':'.join(key)} again"


def _mark(path: Path) -> str:
    """Return the byte order mark if the file begins with it: Excel needs it to recognise UTF-8."""
    try:
        with path.open("rb") as file:
            return "\ufeff" if file.read(3) == codecs.BOM_UTF8 else ""
    except FileNotFoundError:
        return ""


def _why_not_a_table(columns: list[str]) -> str:
    if missing := [name for name in COLUMNS[:2] if name not in columns]:
        return f"has no column {' and no column '.join(map(repr, missing))}, but {', '.join(columns)[:LONGEST]}"
    twice = next((name for name in columns if columns.count(name) > 1), None)
    return "" if twice is None else f"has the column {twice!r} twice"


def _not_a_table(path: Path, why: str) -> TableError:
    return TableError(f"expected a table of results, got {path}, which {why} and stays as it is: name another file")


def row_of(report: ModelReport, environment: Environment) -> dict[str, str]:
    """Return a model's row; a cell is empty where nothing was measured."""
    row = {
        "zoo": report.zoo,
        "model": report.name,
        "inputs": "; ".join(report.inputs),
        "weights": report.weights,
        "seconds": f"{report.seconds:.1f}",
        "verdict": _verdict(report),
        "checks": checks_text(report.checks),
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
    if (verdict := report.verdict) is not None:
        row["edges"] = str(verdict.edges_checked)
        if report.forward_ms and float(row["forward_ms"]):  # what shows as 0.00 is nothing to divide by
            row["validate_ratio"] = f"{verdict.seconds * 1e3 / report.forward_ms:.1f}"
    return row


def _library(zoo: str, environment: Environment) -> str:
    """Return the version of the library that a zoo is named after; empty for a user-defined zoo."""
    return next((f"{name} {version}" for name, version in environment.packages.items() if zoo.startswith(name)), "")


def _verdict(report: ModelReport) -> str:
    """Return the verdict if the item passed, else its outcome and where it failed."""
    if report.outcome is Outcome.PASSED and report.verdict is not None:
        return status_text(report)
    word: str = report.outcome.value
    return f"{word} {failed_how(report)}" if _failed_outside_validation(report) else word


def _reason(report: ModelReport) -> str:
    if _failed_outside_validation(report) or (report.outcome is Outcome.FAILED and report.stage is Stage.CHECK):
        return explain(report).what
    verdict = report.verdict
    return "; ".join(report.notes) if verdict is None or verdict else verdict.words


def _failed_outside_validation(report: ModelReport) -> bool:
    holds = report.verdict is None or report.verdict.status.ok
    failed = report.outcome in (Outcome.FAILED, Outcome.XFAILED)
    return (
        failed and holds and (report.error is not None or (report.comparison is not None and report.comparison.fails))
    )
