"""Measure what recording, validating and `--lens-validate` cost: `python -m benchmarks`.

One thread, eval mode, no gradients, random weights; CPU time, as medians of interleaved runs, in multiples of a plain
forward pass of the same round.  The package torchlens is measured beside, if it is installed, in processes of its own,
because it leaves torch wrapped.  The figures are compared with those of the last release, and `--save` replaces them.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable
from collections.abc import Iterable
from statistics import median
from typing import Any

from benchmarks import empty_tests
from benchmarks.child import run_child
from benchmarks.figures import FILE
from benchmarks.figures import Figure
from benchmarks.figures import Figures
from benchmarks.figures import Table
from benchmarks.figures import slowdowns
from benchmarks.modes import OURS
from benchmarks.modes import PLAIN
from benchmarks.modes import peers
from benchmarks.suites import cpu_seconds
from benchmarks.table import environment
from benchmarks.table import medians
from benchmarks.workloads import FAMILIES
from benchmarks.workloads import LARGE
from benchmarks.workloads import WORKLOADS

ROUNDS = 7
FEW_ROUNDS = 3
"""Rounds of what takes long."""
BUDGET, PEER_BUDGET = 25.0, 4.0
"""CPU seconds after which a mode is not run again."""
VALIDATED, PEER_VALIDATED = "validated", "torchlens validate"


def main() -> int:
    """Measure, print, and compare; return 1 if anything is slower than it was, and not saved."""
    options = _parser().parse_args()
    figures = Figures(f"{datetime.datetime.now(tz=datetime.timezone.utc):%Y-%m-%d}: {environment()}")
    print(figures.environment)
    if not peers():
        print("The package torchlens is not installed, and not measured.")
    for title in options.only or TABLES:
        figures.tables[title] = TABLES[title]()
        print(f"\n{medians(title, figures.tables[title])}", flush=True)
    slower = _compare(figures) if FILE.exists() else False
    if options.save:
        figures.save(FILE)
    return int(slower and not options.save)


def _compare(figures: Figures) -> bool:
    """Print what became slower; return whether any of it is more than noise."""
    before = Figures.load(FILE)
    found = slowdowns(before, figures)
    print(f"\nSlower than the figures of {before.environment}:")
    print("\n".join(map(str, found)) or "nothing")
    return not all(one.is_noise for one in found)


def time_table() -> Table:
    """Measure forward passes, recorded and validated ones; each model in a process of its own."""
    return {name: _times([name], [*OURS], ROUNDS)[name] | _peer_times(name) for name in WORKLOADS}


def _peer_times(workload: str) -> dict[str, Figure]:
    row = _times([workload], [PLAIN, *peers()], ROUNDS, PEER_BUDGET)[workload] if peers() else {}
    return {mode: figure for mode, figure in row.items() if mode in peers()}


def families_table() -> Table:
    """Measure validations of models of timm's families, and their median."""
    table = _times([*FAMILIES], [PLAIN, VALIDATED], FEW_ROUNDS)
    columns = dict.fromkeys(column for row in table.values() for column in row)
    return {**table, "median": {column: _middle(row[column] for row in table.values()) for column in columns}}


def _middle(figures: Iterable[Figure]) -> Figure:
    of = [(one.low, one.median, one.high) for one in figures]
    return Figure(*map(median, zip(*of, strict=True)))


def _times(workloads: list[str], modes: list[str], rounds: int, budget: float = BUDGET) -> Table:
    found = _run_child(measure="time", workloads=workloads, modes=modes, rounds=rounds, budget=budget)
    for workload, result in found.items():
        for mode, error in result["errors"].items():
            print(f"{workload}, {mode}: {error}")
    return {
        workload: {
            name: Figure.of(values) for name, values in {"plain, ms": result["plain_ms"], **result["ratios"]}.items()
        }
        for workload, result in found.items()
    }


def memory_table() -> Table:
    """Measure how many MiB of tensors live at once, which is the same on any machine, and of resident memory."""
    return {workload: _memory(workload) for workload in LARGE}


def _memory(workload: str) -> dict[str, Figure]:
    storage = _run_child(measure="storage", workload=workload, modes=[PLAIN, VALIDATED])["storage_mib"]
    row = {f"{mode}, MiB of tensors": Figure.of([mib]) for mode, mib in storage.items()}
    for mode in (PLAIN, VALIDATED, *(mode for mode in peers() if mode == PEER_VALIDATED)):
        resident = _run_child(measure="resident", workload=workload, mode=mode)["peak_mib"]
        row[f"{mode}, MiB resident"] = Figure.of([resident])
    return row


def empty_tests_table() -> Table:
    """Measure pytest on empty tests, and how many times as much it takes with the plugin and `--lens-validate`."""
    return {f"{empty_tests.TESTS:,} tests {name}": _empty(start) for name, start in empty_tests.SUITES.items()}


def _empty(start: str) -> dict[str, Figure]:
    rounds = empty_tests.measure(start, ROUNDS)
    ratios = {mode: [one[mode] / one[PLAIN] for one in rounds] for mode in empty_tests.MODES if mode != PLAIN}
    figures = {mode: Figure.of(values) for mode, values in ratios.items()}
    return {"plain, s": Figure.of([seconds[PLAIN] for seconds in rounds]), **figures}


def _run_child(**request: Any) -> dict[str, Any]:
    start = cpu_seconds()
    result = run_child(**request)
    print(f"{cpu_seconds() - start:.0f} s: {request}", file=sys.stderr)
    return result


TABLES: dict[str, Callable[[], Table]] = {
    "CPU time": time_table,
    "families of timm": families_table,
    "empty tests": empty_tests_table,
    "memory": memory_table,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition(":")[0] + ".")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", action="append", choices=list(TABLES), help="Measure only this table; repeatable")
    which.add_argument("--save", action="store_true", help=f"Replace the figures of the last release, {FILE.name}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
