"""Measure what the whole validation costs, in memory and time: `python -m benchmarks.validate`.

One thread, batch 1, eval mode, no gradients, random weights, all five parts.  Memory is measured twice: as tensors
alive at one time, which is the same on any machine, and as the rise of the resident set in a new process.  Time is CPU
time in interleaved runs, compared with a plain forward pass.  The validation of the package torchlens is measured on
the same models, if it is installed.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.capture import add_run_options
from benchmarks.capture import run_child
from benchmarks.modes import peers
from benchmarks.table import MISSING
from benchmarks.table import environment
from benchmarks.table import markdown
from benchmarks.table import ratio
from benchmarks.workloads import LARGE

TIMED = ("resnet50", "vit_b_16")
TIMES_PLAIN = 6.0
"""Maximum time of a validation, as a multiple of a plain forward pass."""
STORAGE_TIMES_PLAIN = 1.3
"""Maximum memory, as a multiple of a plain pass; twice the largest operation's inputs and outputs is added."""
PLAIN, OURS, PEER = "plain", "validated", "torchlens validate"


def main() -> int:
    """Measure, print two tables, and return 1 if a bound is exceeded."""
    options = _parser().parse_args()
    modes = [PLAIN, OURS, *([PEER] if not options.no_peers and peers() else [])]
    times = {name: _time(name, modes, options) for name in options.timed or TIMED}
    memory = {name: _memory(name, modes) for name in options.measured or LARGE}
    print("\n\n".join([environment(), time_table(times), memory_table(memory)]))
    if options.json:
        options.json.write_text(json.dumps({"time": times, "memory": memory}, indent=1) + "\n", encoding="utf-8")
    holds = [result["cpu_ms"][OURS] <= TIMES_PLAIN * result["cpu_ms"][PLAIN] for result in times.values()]
    holds += [result["storage_mib"][OURS] <= bound(result) for result in memory.values()]
    return 0 if all(holds) else 1


def bound(result: dict[str, Any]) -> float:
    """Return the MiB that a validation's tensors may take."""
    return float(STORAGE_TIMES_PLAIN * result["storage_mib"][PLAIN] + 2 * result["largest_mib"])


def _time(workload: str, modes: list[str], options: argparse.Namespace) -> dict[str, Any]:
    print(f"timing {workload} …", file=sys.stderr)
    turns = {"workload": workload, "rounds": options.rounds, "budget": options.budget}
    result = run_child(measure="time", modes=[mode for mode in modes if mode != PEER], **turns)
    if PEER in modes:
        beside = run_child(measure="time", modes=[PEER], **turns)
        for key in ("cpu_ms", "wall_ms", "errors"):
            result[key] |= beside[key]
    return result


def _memory(workload: str, modes: list[str]) -> dict[str, Any]:
    print(f"measuring the memory of {workload} …", file=sys.stderr)
    result = run_child(measure="storage", workload=workload, modes=[mode for mode in modes if mode != PEER])
    result["peak_mib"] = {mode: run_child(measure="memory", workload=workload, mode=mode)["peak_mib"] for mode in modes}
    return result


def time_table(times: dict[str, dict[str, Any]]) -> str:
    """Return one row for each model: the plain time, and those of validations as multiples of it."""
    rows = [
        [
            name,
            f"{result['cpu_ms'][PLAIN]:.0f} ms",
            ratio(result["cpu_ms"], OURS),
            f"{TIMES_PLAIN:.0f}",
            ratio(result["cpu_ms"], PEER),
        ]
        for name, result in times.items()
    ]
    return markdown(["processor time", PLAIN, "validation, times plain", "bound", "torchlens"], rows)


def memory_table(memory: dict[str, dict[str, Any]]) -> str:
    """Return one row for each model: MiB of live tensors and of resident memory, plain and validated."""
    head = ["MiB", "tensors, plain", "validation", "bound", "resident, plain", "validation", "torchlens"]
    rows = []
    for name, result in memory.items():
        tensors, resident = result["storage_mib"], result["peak_mib"]
        others = [f"{resident[mode]:.0f}" if mode in resident else MISSING for mode in (PLAIN, OURS, PEER)]
        rows.append([name, f"{tensors[PLAIN]:.0f}", f"{tensors[OURS]:.0f}", f"{bound(result):.0f}", *others])
    return markdown(head, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.validate", description="Measure what the whole validation costs."
    )
    parser.add_argument("--timed", action="append", metavar="MODEL", help="Time only this model; repeatable")
    parser.add_argument(
        "--measured", action="append", metavar="MODEL", help="Measure the memory of only this model; repeatable"
    )
    add_run_options(parser, rounds=7, budget=30.0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
