"""Measure what the whole validation costs, in memory and time: `python -m benchmarks.validate`.

One thread, batch 1, eval mode, no gradients, random weights, all five parts.  Memory is counted twice: the tensors
that live at one time, the same on any machine, and the rise of the resident set in a fresh process.  Time is the
processor's, in interleaved runs, beside a plain forward pass.  Where the package torchlens is installed its
validation is measured on the same models.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.capture import run_child
from benchmarks.modes import peers
from benchmarks.table import MISSING
from benchmarks.table import environment
from benchmarks.table import markdown
from benchmarks.table import ratio
from benchmarks.workloads import LARGE

TIMED = ("resnet50", "vit_b_16")
TIMES_PLAIN = 6.0
"""A validation may take so many times a plain forward pass."""
STORAGE_TIMES_PLAIN = 1.3
"""Its tensors may take so many times those of a plain pass, and twice the largest operation's inputs and outputs."""
PLAIN, OURS, PEER = "plain", "validated", "torchlens validate"


def main() -> int:
    """Measure, print two tables, and return 1 if a bound does not hold."""
    options = _parser().parse_args()
    modes = [PLAIN, OURS, *([PEER] if not options.no_peers and peers() else [])]
    times = {name: _time(name, modes, options) for name in options.timed or TIMED}
    memory = {name: _memory(name, modes) for name in options.measured or LARGE}
    print("\n\n".join([environment(), time_table(times), memory_table(memory)]))
    if options.json:
        options.json.write_text(json.dumps({"time": times, "memory": memory}, indent=1) + "\n", encoding="utf-8")
    held = [found["cpu_ms"][OURS] <= TIMES_PLAIN * found["cpu_ms"][PLAIN] for found in times.values()]
    held += [found["storage_mib"][OURS] <= bound(found) for found in memory.values()]
    return 0 if all(held) else 1


def bound(found: dict[str, Any]) -> float:
    """Return the MiB that a validation's tensors may take."""
    return float(STORAGE_TIMES_PLAIN * found["storage_mib"][PLAIN] + 2 * found["largest_mib"])


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
    """Return one row a model: the plain time, and the validations' as multiples of it."""
    rows = [
        [
            name,
            f"{found['cpu_ms'][PLAIN]:.0f} ms",
            ratio(found["cpu_ms"], OURS),
            f"{TIMES_PLAIN:.0f}",
            ratio(found["cpu_ms"], PEER),
        ]
        for name, found in times.items()
    ]
    return markdown(["processor time", PLAIN, "validation, times plain", "bound", "torchlens"], rows)


def memory_table(memory: dict[str, dict[str, Any]]) -> str:
    """Return one row a model: MiB of live tensors, and of resident memory, plain and validated."""
    head = ["MiB", "tensors, plain", "validation", "bound", "resident, plain", "validation", "torchlens"]
    rows = []
    for name, found in memory.items():
        tensors, resident = found["storage_mib"], found["peak_mib"]
        others = [f"{resident[mode]:.0f}" if mode in resident else MISSING for mode in (PLAIN, OURS, PEER)]
        rows.append([name, f"{tensors[PLAIN]:.0f}", f"{tensors[OURS]:.0f}", f"{bound(found):.0f}", *others])
    return markdown(head, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.validate", description="Measure what the whole validation costs."
    )
    parser.add_argument("--timed", action="append", metavar="MODEL", help="Time this one only; repeatable")
    parser.add_argument("--measured", action="append", metavar="MODEL", help="Memory of this one only; repeatable")
    parser.add_argument("--rounds", type=int, default=7, help="Turns each mode takes (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=30.0, metavar="SECONDS", help="At most so long a mode")
    parser.add_argument("--no-peers", action="store_true", help="Leave the package torchlens out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Also write every number to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
