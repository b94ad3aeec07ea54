"""Measures the CPU time that the plugin adds to a suite of empty tests: installed, and with `--lens-validate`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.suites import PLAIN
from benchmarks.suites import VALIDATED
from benchmarks.suites import cpu_seconds

TESTS, FILES = 1_000, 10
SUITES = {"that never import torch": "", "that import torch": "import torch\n"}
"""The start of each test file."""
MODES: dict[str, tuple[str, ...]] = {"plain": PLAIN, "installed": (), "validated": VALIDATED}


def measure(start: str, rounds: int) -> list[dict[str, float]]:
    """Return the CPU seconds of pytest in each mode, once a round.

    Parameters
    ----------
    start
        The first lines of each test file.
    rounds
        How often each mode runs; the modes take turns.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(FILES):
            tests = "".join(f"def test_{test}(): pass\n" for test in range(TESTS // FILES))
            (folder / f"test_{number}.py").write_text(start + tests, encoding="utf-8")
        _run(folder, ())  # compiles the files
        return [{mode: _run(folder, arguments) for mode, arguments in MODES.items()} for _ in range(rounds)]


def _run(folder: Path, arguments: tuple[str, ...]) -> float:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    before = cpu_seconds()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    return cpu_seconds() - before
