"""Write docs/zoo/README.md from the tables beside it: `python docs/make_zoo_page.py`.

A table comes from a sweep: `pytest --lens-zoo timm_smallest --lens-validate --lens-table=docs/zoo/timm_smallest.csv`.
"""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder

FOLDER = Path(__file__).parent / "zoo"
PAGE = FOLDER / "README.md"
HEAD = """# What whole zoos came to

Made by `python docs/make_zoo_page.py` from the tables beside this page. A row is a model that was built with random
weights, called, recorded and validated in all five parts, in a worker process, in one thread; rows are measured and
none is guessed.

- **time ratio**: validating it, in plain forward passes measured just before in the same process. The machine was busy,
  so the milliseconds of a forward pass are upper bounds.
- **GFLOPs**: thousand million floating-point operations of one pass, a multiplication with an addition being two; empty
  where they were not counted. Quantized models compute with integers, and have none or few.
- **passed**: the traced run changed nothing, the graph replayed bit for bit, every edge mattered or has a named reason,
  the metadata agree, and the dispatcher ran nothing unrecorded.
- **unproven**: nothing wrong was found, and something could not be shown; the row says what. **Checked** (the column
  `remark`) is what a person who looked at the model says about that.
"""
NOTES = {
    "timm": "The smallest model of each family, at the input size that its configuration names. ",
    "timm_smallest": "Every model at the smallest input that it takes: the graph is that of its usual size. "
    "The machine had 23.5 GiB of memory; vit_7b_patch16_dinov3 has 25.0 GiB of parameters. ",
}
Row = dict[str, str]


def main() -> None:
    """Write the page."""
    tables = {path.stem: _rows(path) for path in sorted(FOLDER.glob("*.csv"))}
    parts = [HEAD, *(part for name, rows in tables.items() for part in _zoo(name, rows))]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


def _rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _zoo(name: str, rows: list[Row]) -> Iterator[str]:
    """Yield the section of a zoo: how many of its models, their verdicts, one row a family, all that did not pass."""
    zoo = load_zoo(shipped_folder() / f"{name}.yaml")
    verdicts = Counter(row["verdict"] for row in rows)
    said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    ran = [row for row in rows if row["library"]]  # no library is imported for a model that is skipped
    versions = ", ".join(sorted({f"torch {row['torch']}, {row['library']}, Python {row['python']}" for row in ran}))
    yield f"## {name}\n\n{NOTES.get(name, '')}{len(rows)} of {len(zoo.names)} models: {said}. {versions}."
    yield f"All rows: [{name}.csv]({name}.csv).\n"
    if (drawn := FOLDER / "drawn" / f"{name}.csv").exists():
        yield from _drawn(_rows(drawn), len(zoo.names))
    failed = [row for row in rows if not row["verdict"].startswith("passed")]
    if failed:
        yield "\n".join(_alike(failed)) + "\n"
    yield tabulate(list(_families(zoo, rows)), headers="keys", tablefmt="github") + "\n"


def _alike(rows: list[Row]) -> Iterator[str]:
    """Yield one line for all models with the same verdict, reason and remark."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        said = row["verdict"], row["reason"], row.get("remark", "")
        groups.setdefault(said, []).append(f"`{row['model']}`")
    for (verdict, reason, remark), names in groups.items():
        why = reason if reason.startswith(verdict) else f"{verdict}: {reason}"
        yield f"- {', '.join(names)}: {why}" + (f" **Checked:** {remark}" if remark else "")


def _drawn(rows: list[Row], num_models: int) -> Iterator[str]:
    """Yield how many were drawn for their pages, and why each of the others was not."""
    missing = [row for row in rows if row["drawn"] != "yes"]
    not_tried = f"; {num_models - len(rows)} were not reached yet" if len(rows) < num_models else ""
    yield f"Drawn for their pages (`--lens-report`): {len(rows) - len(missing)} of {len(rows)} models{not_tried}.\n"
    if missing:
        yield "\n".join(f"- `{row['model']}`: {row['drawn']}" for row in missing) + "\n"


def _families(zoo: Zoo, rows: list[Row]) -> Iterator[dict[str, object]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(zoo.case(row["model"]).family.rpartition(".")[2], []).append(row)
    for family, group in sorted(groups.items()):
        yield {
            "family": family,
            "models": len(group),
            "passed": sum(row["verdict"].startswith("passed") for row in group),
            "parameters": _span(group, "params"),
            "operations": _span(group, "operations"),
            "edges": _span(group, "edges"),
            "GFLOPs": _span(group, "flops", 10**9),
            "time ratio": _median(group, "validate_ratio"),
        }


def _span(rows: list[Row], column: str, unit: int = 1) -> str:
    numbers = [int(row[column]) for row in rows if row[column]]
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    if unit > 1:
        return f"{low / unit:,.2f}" if low == high else f"{low / unit:,.2f} – {high / unit:,.2f}"
    return f"{low:,}" if low == high else f"{low:,} – {high:,}"


def _median(rows: list[Row], column: str) -> str:
    numbers = [float(row[column]) for row in rows if row[column]]
    return f"{statistics.median(numbers):.1f}" if numbers else ""


if __name__ == "__main__":
    main()
