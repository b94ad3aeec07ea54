"""Compares several environments: a table of models by environments, with a verdict in each cell; no torch."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from tabulate import tabulate

from pytest_torchlens.baseline.compare import SERIOUS
from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records import size_text

MISSING = "error"
"""The cell of a model that did not run to its end in an environment, and so has no record there."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Models by environments</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .3rem .8rem; border: 1px solid #8888; text-align: left; }}
pre {{ overflow-x: auto; }}
</style></head><body><h1>Models by environments</h1>
{table}
<ul>{environments}</ul>
<h2>Where differences begin</h2><pre>{details}</pre></body></html>
"""


@dataclass(frozen=True)
class Matrix:
    """Compares models in several environments with the same models in one.

    Attributes
    ----------
    base
        The environment that the others are compared with.
    others
        Their names.
    rows
        By model: its comparison in each other environment; None where that has no record of the model.
    """

    base: str
    others: tuple[str, ...]
    rows: dict[str, tuple[Comparison | None, ...]]

    @classmethod
    def of(cls, folders: Sequence[Path], conditions: Conditions) -> Matrix:
        """Compare the baselines in folders with those of the same models in the first.

        Raises
        ------
        BaselineError
            If a file cannot be used.
        """
        first, *others = [Store(folder, folder) for folder in folders]
        rows = {
            key: tuple(_compare(key, first, other, conditions) for other in others)
            for key in sorted({key for store in (first, *others) for key in store.models()})
        }
        names = [folder.name.removeprefix("@") for folder in folders]
        return cls(names[0], tuple(names[1:]), rows)

    @property
    def fails(self) -> bool:
        """Whether a comparison fails, or an environment has no record of a model."""
        return any(cell is None or cell.fails for row in self.rows.values() for cell in row)

    def environments(self) -> list[str]:
        """Return how each other environment differs from the base: ``"new: torch 2.13.0 → 2.14.1"``."""
        columns = zip(*self.rows.values(), strict=True)
        return [f"{name}: {_axes(column)}" for name, column in zip(self.others, columns, strict=True)]

    def table(self, style: str = "simple") -> str:
        """Return one line a model; `style` is one of `tabulate`'s."""
        rows = [(key, *map(_word, row)) for key, row in self.rows.items()]
        columns = list(zip(*self.rows.values(), strict=True)) if self.rows else []
        totals = [("total", *(_totals(column) for column in columns))]
        return tabulate([*rows, *totals], headers=(f"against {self.base}", *self.others), tablefmt=style)

    def details(self) -> str:
        """Return one line for each model and environment that differ: where the difference begins."""
        lines = []
        for key, row in self.rows.items():
            for name, cell in zip(self.others, row, strict=True):
                if cell is not None and (first := cell.first) is not None:
                    size = f" ({size_text(first.error)} of the largest value)" if first.error else ""
                    where = f" at {first.operation}" if first.operation else ""
                    lines.append(f"{key}, {name}: {first.change.value}{where}: {first.message}{size}")
        return "\n".join(lines) or "none"

    def markdown(self) -> str:
        """Return table and details as Markdown."""
        environments, details = map(_bullets, (self.environments(), self.details().splitlines()))
        escaped = replace(self, rows={key.replace("|", r"\|"): row for key, row in self.rows.items()})
        return f"{escaped.table('github')}\n\n{environments}\n\nWhere differences begin:\n\n{details}\n"

    def page(self) -> str:
        """Return table and details as an HTML page."""
        environments = "".join(f"<li>{html.escape(line)}</li>" for line in self.environments())
        return _PAGE.format(table=self.table("html"), environments=environments, details=html.escape(self.details()))


def _compare(key: str, first: Store, other: Store, conditions: Conditions) -> Comparison | None:
    before, after = first.load(key), other.load(key)
    return compare(before, after, conditions, baseline=key) if before is not None and after is not None else None


def _word(cell: Comparison | None) -> str:
    return MISSING if cell is None else cell.verdict.value


def _axes(column: Sequence[Comparison | None]) -> str:
    found = dict.fromkeys(axis for cell in column if cell is not None for axis in cell.axes)
    return "; ".join(found) or "the same environment"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _totals(column: Sequence[Comparison | None]) -> str:
    counts = Counter(map(_word, column))
    order = [MISSING, *(change.value for change in SERIOUS), Change.NEW.value]
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word])
