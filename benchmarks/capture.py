"""Measure what recording and validating cost: `python -m benchmarks.capture`.

One thread, batch 1, 224 x 224 pixels, eval mode, no gradients, random weights. Times are medians of
interleaved runs, memory is the rise of the resident set in a new process. The package torchlens is measured
too, if it is installed. It runs in its own process, because it leaves torch wrapped, which would slow every
later mode.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.modes import OURS
from benchmarks.modes import WITHOUT
from benchmarks.modes import peers
from benchmarks.table import environment
from benchmarks.table import field_table
from benchmarks.table import memory_table
from benchmarks.table import note
from benchmarks.table import time_table
from benchmarks.workloads import WORKLOADS


def main() -> None:
    """Measure the selected workloads and print the tables."""
    options = _parser().parse_args()
    others = [] if options.no_peers else peers()
    modes = [name for name in [*OURS, *WITHOUT, *others] if name == "plain" or name not in options.without]
    results = {}
    for workload in options.workload or WORKLOADS:
        print(f"measuring {workload} …", file=sys.stderr)
        results[workload] = _measure(workload, modes, options)
    compared = [mode for mode in modes if mode not in WITHOUT]
    tables = [time_table(results, compared), field_table(results, [mode for mode in modes if mode in WITHOUT])]
    if not options.no_memory:
        tables.append(memory_table(results, compared))
    print("\n\n".join([environment(), *tables, note(results)]))
    if options.json:
        report = {"environment": environment(), "results": results}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _measure(workload: str, modes: list[str], options: argparse.Namespace) -> dict[str, Any]:
    turns = {"workload": workload, "rounds": options.rounds, "budget": options.budget}
    result = run_child(measure="time", modes=[mode for mode in modes if mode in OURS or mode in WITHOUT], **turns)
    if others := [mode for mode in modes if mode not in OURS and mode not in WITHOUT]:
        beside = run_child(measure="time", modes=others, **turns)
        for key in ("wall_ms", "cpu_ms", "runs", "errors"):
            result[key] |= beside[key]
    if not options.no_memory:
        result["peak_mib"] = {
            mode: run_child(measure="memory", workload=workload, mode=mode)["peak_mib"]
            for mode in result["runs"]
            if mode not in WITHOUT
        }
    return result


def run_child(**request: Any) -> dict[str, Any]:
    """Return the result of one measurement in a new process."""
    command = [sys.executable, "-m", "benchmarks.child", json.dumps(request)]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def add_run_options(parser: argparse.ArgumentParser, rounds: int, budget: float) -> None:
    """Add the options of a benchmark that compares modes, with its defaults: `rounds`, and `budget` in seconds."""
    parser.add_argument("--rounds", type=int, default=rounds, help="Runs of each mode (default: %(default)s)")
    parser.add_argument(
        "--budget",
        type=float,
        default=budget,
        metavar="SECONDS",
        help="A mode that has used this much time is not run again (default: %(default)s)",
    )
    parser.add_argument("--no-peers", action="store_true", help="Leave the package torchlens out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Also write every number to this file")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capture", description=__doc__.partition("\n")[0].partition(":")[0] + "."
    )
    parser.add_argument(
        "--workload", action="append", choices=list(WORKLOADS), help="Measure only this workload; repeatable"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="MODE", help="Leave this mode out; repeatable"
    )
    add_run_options(parser, rounds=15, budget=20.0)
    parser.add_argument("--no-memory", action="store_true", help="Measure time only (memory needs Linux)")
    return parser


if __name__ == "__main__":
    main()
