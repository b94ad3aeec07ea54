"""The measured figures: kept in a file from release to release, and compared."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from statistics import median
from statistics import quantiles

FILE = Path(__file__).with_name("figures.csv")
SLOWER = 1.1
"""How many times the former figure is a slowdown."""
_HEAD = ("table", "row", "column", "low", "median", "high")


@dataclass(frozen=True)
class Figure:
    """The median of several measurements, and their quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Figure:
        """Return the median and the quartiles of some values."""
        low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(low, median(values), high)

    def __str__(self) -> str:
        return f"{number(self.median)} ({number(self.low)} to {number(self.high)})"


Table = dict[str, dict[str, Figure]]
"""Figures by row and column."""


@dataclass
class Figures:
    """All figures of one run of the benchmark, by table."""

    environment: str
    """Date, machine and versions."""
    tables: dict[str, Table] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(f"# {self.environment}\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_HEAD)
            for key, figure in self.cells():
                writer.writerow([*key, *(f"{value:.5g}" for value in (figure.low, figure.median, figure.high))])

    @classmethod
    def load(cls, path: Path) -> Figures:
        """Read a file that `save` wrote."""
        with path.open(encoding="utf-8", newline="") as file:
            figures = cls(file.readline().removeprefix("# ").rstrip("\n"))
            for line in csv.DictReader(file):
                row = figures.tables.setdefault(line["table"], {}).setdefault(line["row"], {})
                row[line["column"]] = Figure(float(line["low"]), float(line["median"]), float(line["high"]))
        return figures

    def cells(self) -> Iterator[tuple[tuple[str, str, str], Figure]]:
        """Yield table, row and column of each figure, and the figure."""
        for title, table in self.tables.items():
            for name, row in table.items():
                for column, figure in row.items():
                    yield (title, name, column), figure


@dataclass(frozen=True)
class Slowdown:
    """A figure that is larger than the former one by a tenth or more."""

    key: tuple[str, str, str]
    before: Figure
    now: Figure

    @property
    def is_noise(self) -> bool:
        """Whether the middle halves of the measurements overlap."""
        return self.now.low <= self.before.high

    def __str__(self) -> str:
        times = f"{self.now.median / self.before.median:.2f} times"
        return f"{', '.join(self.key)}: {self.before}, now {self.now}: {times}{', noise' if self.is_noise else ''}"


def slowdowns(before: Figures, now: Figures) -> list[Slowdown]:
    """Return what became slower or larger; plain passes and other packages are not compared."""
    former = dict(before.cells())
    pairs = ((key, former[key], figure) for key, figure in now.cells() if key in former and _is_ours(key[2]))
    return [Slowdown(*pair) for pair in pairs if pair[2].median >= SLOWER * pair[1].median]


def _is_ours(column: str) -> bool:
    return not column.startswith(("plain", "torchlens"))


def number(value: float) -> str:
    """Return a figure with as many digits as mean something."""
    digits = 3 if value < 2 else 2 if value < 10 else 0  # noqa: PLR2004
    return f"{value:,.{digits}f}"
