"""Write docs/checks_results.md from the tables in docs/zoo/checks: `python docs/make_checks_page.py [REPORT.json ...]`.

A table has a row for each model and a column for each check.  The results of reports (`--lens-json`) go into it first,
over former ones; the column `remark` is what a person writes who looked at a failure, and stays.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

from pytest_torchlens.checks.catalog import CHECKS
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import from_json
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder

FOLDER = Path(__file__).parent / "zoo" / "checks"
PAGE = Path(__file__).parent / "checks_results.md"
NAMES = [check.name for check in CHECKS]
COLUMNS = ["model", "family", "torch", *NAMES, "remark"]
REDRAWN = "passed, weights drawn anew"
HEAD = """# What the checks found

Made by `python docs/make_checks_page.py` from the tables in `docs/zoo/checks`: [checks](checks.md) of real
models with random weights, in processes of one thread on a CPU. Results are measured and none is guessed.

- **passed**: at least one output that depends on the input was compared, and agrees. No pass is vacuous.
- **drawn anew**: of these, on a copy with other weights, as with the zoo's the output hardly depended on the input.
- **failed**: what a person who looked at it says stands below. All are true, or the page says otherwise.
- **not applicable**: the reasons are counted below. Those that did not end within their limit of time say nothing of
  the model: they ran on a machine that did other work too, and are to be run again.

A table's reports come from `pytest --lens-zoo ZOO --lens-checks=CHECKS --lens-json=REPORT.json`, for torchvision with
the zoo file in that folder. Each table says which checks it has no results of. `compile` used `aot_eager`. The way
`pickle` of `state` was not tried, the others on all models.
"""
WEIGHTS = """## Weights

How much the output changes with the input (as a share of its RMS) was measured for 79 of timm's 98 families, at their
smallest images, by `python -m benchmarks.weights`. With the zoo's random weights it is under 1e-3 in 8 of them, under
1e-5 in one (cspnext_tiny: 2.5e-6); with the library's own initial values in 13 and 8, of which 5 give one output to
both inputs. So the zoo's weights make fewer models degenerate than those, and stay as they are: stored baselines depend
on them. Weights drawn anew by a check leave one under 1e-3 (cspnext_tiny: 3e-4), which suffices. The zoo's weights keep
the variance of one layer, not of a long chain of blocks: in repvit_m1 activations grow to 5,000, and gates saturate.
"""
SETS = {
    "timm_smallest": (98, "the smallest model of each family, at the smallest image that it takes"),
    "torchvision": (80, "classifiers on images of 64 pixels"),
    "transformers": (60, "architectures, shrunk as in the shipped zoo"),
    "inductor": (25, "the check `compile` with `{backend: inductor}`"),
}
"""How many models each table is to have, and which."""
Row = dict[str, str]


def main(paths: Iterable[str]) -> None:
    """Take the results of reports into the tables, and write the page."""
    for path in paths:
        take_in(Path(path))
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page of the tables."""
    tables = {path.stem: read(path) for path in sorted(FOLDER.glob("*.csv"))}
    parts = [HEAD, *(part for name, rows in tables.items() for part in _section(name, rows)), WEIGHTS]
    return "\n".join(parts).rstrip() + "\n"


_EACH_ITS_OWN = "transformers"
"""The zoo in which each model is an architecture."""
_INDUCTOR = "ind_"
"""Before the name of a zoo file in which the backend of `compile` is inductor."""


# -- tables ----------------------------------------------------------------------------------------------------------


def take_in(path: Path) -> None:
    """Write the results of a report into the tables of its zoos."""
    report = from_json(path.read_text(encoding="utf-8"), RunReport)
    for zoo in {model.zoo for model in report.models}:
        shipped = zoo.removeprefix(_INDUCTOR)
        families = load_zoo(shipped_folder() / f"{shipped}.yaml")
        table = FOLDER / f"{'inductor' if zoo != shipped else zoo}.csv"
        rows = {row["model"]: row for row in read(table)} if table.exists() else {}
        for model in report.models:
            if model.zoo == zoo and model.checks:
                row = rows.setdefault(model.name, dict.fromkeys(COLUMNS, ""))
                family = model.name if shipped == _EACH_ITS_OWN else families.case(model.name).family.rpartition(".")[2]
                row |= {"model": model.name, "family": family, "torch": report.environment.torch}
                row |= {result.name: cell(result) for result in model.checks}
        _write(table, [rows[name] for name in sorted(rows)])


def cell(result: CheckResult) -> str:
    """Return a result as a cell: its status, and why."""
    if result.status is CheckStatus.PASSED:
        return REDRAWN if result.redrawn else "passed"
    why = result.reason or (result.failure.message if result.failure else "")
    return f"{result.status.value}: {_shortened(why)}"


def _shortened(text: str) -> str:
    text = re.sub(r"(?:/[\w.+-]+)+/site-packages/", "", " ".join(text.split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


_LONGEST = 200


def read(path: Path) -> list[Row]:
    """Return the rows of a table; a check that it has no column for has empty cells."""
    with path.open(encoding="utf-8", newline="") as file:
        return [dict.fromkeys(COLUMNS, "") | row for row in csv.DictReader(file)]


def _write(path: Path, rows: list[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# -- page ------------------------------------------------------------------------------------------------------------


def _section(name: str, rows: list[Row]) -> Iterator[str]:
    cells = [(row, check, row[check]) for row in rows for check in NAMES if row[check]]
    versions = ", ".join(sorted({row["torch"] for row in rows}))
    planned, which = SETS[name]
    yield f"## {name}\n\nOf {planned} models ({which}): {len(rows)} models, {_words(cells)}. torch {versions}."
    yield _which_ran(rows)
    yield f"All rows: [{name}.csv](zoo/checks/{name}.csv).\n"
    yield _table("check", [(check, [one for one in cells if one[1] == check]) for check in NAMES]) + "\n"
    yield from _failures(cells)
    yield from _reasons(cells)
    families = sorted({row["family"] for row in rows})
    yield _table("family", [(one, [at for at in cells if at[0]["family"] == one]) for one in families]) + "\n"


def _which_ran(rows: list[Row]) -> str:
    """Return how many checks have results in a table, on how many models all of these ran, and which have none."""
    ran = [check for check in NAMES if any(row[check] for row in rows)]
    whole = sum(all(row[check] for check in ran) for row in rows)
    others = ", ".join(f"`{check}`" for check in NAMES if check not in ran)
    where = "each on all models" if whole == len(rows) else f"all of these on {whole} of the models"
    return f"{len(ran)} of the {len(NAMES)} checks ran, {where}." + (f" No results here of {others}." if others else "")


Cell = tuple[Row, str, str]


def status(text: str) -> str:
    """Return the status of a cell."""
    return text.partition(":")[0].partition(",")[0]


def _words(cells: list[Cell]) -> str:
    counts = Counter(status(text) for _, _, text in cells)
    redrawn = sum(text == REDRAWN for _, _, text in cells)
    words = ", ".join(f"{count:,} {word}" for word, count in counts.most_common())
    return f"{len(cells):,} results: {words}; {redrawn} of the passes on weights drawn anew"


def _table(first: str, groups: list[tuple[str, list[Cell]]]) -> str:
    return tabulate([_counts(first, *group) for group in groups if group[1]], headers="keys", tablefmt="github")


def _counts(first: str, name: str, cells: list[Cell]) -> dict[str, object]:
    counts = Counter(status(text) for _, _, text in cells)
    return {
        first: name,
        "models": len({row["model"] for row, _, _ in cells}),
        "passed": counts["passed"],
        "drawn anew": sum(text == REDRAWN for _, _, text in cells),
        "tie": counts["tie"],
        "not applicable": counts["not-applicable"],
        "failed": counts["failed"] + counts["error"],
    }


def _failures(cells: list[Cell]) -> Iterator[str]:
    """Yield one line for failures with the same check and remark."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row, check, text in cells:
        if status(text) in ("failed", "error", "tie"):
            groups.setdefault((check, remark_on(row, check)), []).append((row["model"], text))
    if groups:
        yield "Failures and ties:\n"
    for (check, remark), found in groups.items():
        models = ", ".join(f"`{model}`" for model, _ in found)
        yield f"- **{check}** {models}: {found[0][1]}." + (f" **Checked:** {remark}" if remark else "")
    if groups:
        yield ""


def remark_on(row: Row, check: str) -> str:
    """Return what a person wrote about the result of one check: remarks are ``check: sentence``, with ``|`` between."""
    remarks = dict(part.strip().partition(": ")[::2] for part in row["remark"].split("|"))
    return remarks.get(check, "")


def _reasons(cells: list[Cell]) -> Iterator[str]:
    """Yield the reasons why checks were not applicable, with the number of models."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row, check, text in cells:
        if status(text) == "not-applicable":
            reasons.setdefault((_alike(text.partition(": ")[2]), check), []).append(row["model"])
    if reasons:
        yield "Not applicable:\n"
    for (reason, check), models in sorted(reasons.items(), key=lambda item: -len(item[1])):
        named = ", ".join(f"`{model}`" for model in models[:_NAMED])
        yield f"- **{check}**, {len(models)}: {reason} ({named}{', …' if len(models) > _NAMED else ''})"
    if reasons:
        yield ""


_NAMED = 6


def _alike(reason: str) -> str:
    """Return a reason without the numbers and labels that differ from model to model."""
    return re.sub(r"\b[a-z]+(_\d+){2}\b", "…", reason)


if __name__ == "__main__":
    main(sys.argv[1:])
