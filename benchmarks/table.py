"""Tables as Markdown, and the machine and versions on which they were measured."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.figures import Table
from benchmarks.figures import number

MISSING = "–"
PACKAGES = ("torch", "torchvision", "timm", "transformers", "pytest", "pytest-torchlens", "torchlens")


def environment() -> str:
    """Return one line: processor, Python and packages."""
    versions = [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
    return ", ".join([_processor(), "one thread", f"Python {platform.python_version()}", *versions])


def medians(title: str, table: Table) -> str:
    """Return the medians of a table of figures."""
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    rows = [
        [name, *(number(row[column].median) if column in row else MISSING for column in columns)]
        for name, row in table.items()
    ]
    return markdown([title, *columns], rows)


def markdown(head: list[str], rows: list[list[Any]]) -> str:
    """Return a table."""
    align = ("left", *["right"] * (len(head) - 1))
    return tabulate(rows, headers=head, tablefmt="pipe", disable_numparse=True, colalign=align)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8")) if info.exists() else None
    return match[1] if match else platform.processor() or platform.machine()
