"""Measure the CPU time of validating models of a zoo end to end: `python -m benchmarks.zoo`.

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

SMALL = (
    *("lcnet_035", "tinynet_e", "mobilenetv3_small_050", "ghostnet_050", "mnasnet_small", "regnetx_002", "resnet10t"),
    *("edgenext_xx_small", "efficientvit_b0", "mobilevitv2_050", "levit_128s", "pit_ti_224", "xcit_nano_12_p16_224"),
    *("crossvit_tiny_240", "mobileone_s0"),
)


def main() -> None:
    """Validate all models, and the first alone for what does not depend on their number; print a table."""
    models = _parser().parse_args().models or [f"--lens-zoo=timm:{name}" for name in SMALL]
    alone, _ = validate(models[:1])
    seconds, summary = validate(models)
    each = (seconds - alone) / (len(models) - 1)
    row = [len(models), f"{seconds:.1f} s", f"{alone:.1f} s", f"{each:.2f} s", summary]
    head = ["models", "CPU time", "the first alone", "each further one", "outcome"]
    print(environment(), markdown(head, [row]), sep="\n\n")


def validate(models: list[str]) -> tuple[float, str]:
    """Validate some models in a new pytest; return its CPU time, and pytest's summary."""
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", *models, "--lens-validate", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in RAN:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", done.stdout.splitlines()[-1])
    return cpu_seconds() - before, ", ".join(counts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", help="Arguments of pytest, after --, each a model (default: 15 of timm)")
    return parser


if __name__ == "__main__":
    main()
