"""Measure the CPU time of validating models of a zoo end to end: `python -m benchmarks.zoo --models 15`.

All counts: pytest, the worker and its imports, building and filling each model, its timed passes, its validation.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile

from benchmarks.suites import RAN
from benchmarks.suites import cpu_seconds
from benchmarks.table import environment
from benchmarks.table import markdown


def main() -> None:
    """Validate the cheapest models, and one of them alone for what does not depend on their number; print a table."""
    options = _parser().parse_args()
    selection = options.selection or ["--lens-zoo=timm"]
    alone, _ = validate(selection, 1)
    seconds, summary = validate(selection, options.models)
    each = (seconds - alone) / (options.models - 1)
    row = [" ".join(selection), options.models, f"{seconds:.1f} s", f"{alone:.1f} s", f"{each:.2f} s", summary]
    head = ["zoo", "models", "CPU time", "one alone", "each further one", "outcome"]
    print(environment(), markdown(head, [row]), sep="\n\n")


def validate(selection: list[str], models: int) -> tuple[float, str]:
    """Validate the cheapest `models` of a selection in a new pytest; return its CPU time, and pytest's summary."""
    options = ["--lens-limit", str(models), "--lens-validate", "-q", "-p", "no:cacheprovider"]
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", *selection, *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in RAN:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", done.stdout.splitlines()[-1])
    return cpu_seconds() - before, ", ".join(counts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("selection", nargs="*", help="Arguments of pytest that select models, after -- (default: timm)")
    parser.add_argument("--models", type=int, default=100, metavar="N", help="How many, the cheapest (default: 100)")
    return parser


if __name__ == "__main__":
    main()
