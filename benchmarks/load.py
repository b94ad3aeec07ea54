"""Measures how much CPU time the plugin adds to pytest's start: `python -m benchmarks.load`."""

from __future__ import annotations

import statistics
import subprocess
import sys

_SCRIPT = """
import time
start = time.process_time()
import pytest
theirs = time.process_time()
import pytest_torchlens.plugin
print(theirs - start, time.process_time() - theirs)
"""
_RUNS = 15


def main() -> None:
    """Import both in new processes; print the medians and their ratio."""
    runs = [_seconds() for _ in range(_RUNS)]
    theirs, ours = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"pytest {theirs * 1e3:.1f} ms, the plugin {ours * 1e3:.1f} ms, ratio {ours / theirs:.3f}")


def _seconds() -> tuple[float, float]:
    printed = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True).stdout
    theirs, ours = map(float, printed.split())
    return theirs, ours


if __name__ == "__main__":
    main()
