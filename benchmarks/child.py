"""Makes one measurement in a new process: `python -m benchmarks.child '{...}'` prints one line of JSON.

Time: the modes take turns (A, B, C, A, B, C, …), so that a machine that slows down slows all of them.
Memory: the first pass on this model in its process, because a later one finds the heap already grown.
"""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import nn

from benchmarks.modes import MODES
from benchmarks.modes import PLAIN
from benchmarks.modes import Mode
from benchmarks.storage import largest_operation
from benchmarks.storage import peak_of
from benchmarks.workloads import build
from benchmarks.workloads import tiny

MIB = 2**20
LEAST = 0.05
"""CPU seconds of one measurement; what takes less is repeated within it."""


def measure_time(workloads: list[str], modes: list[str], rounds: int, budget: float) -> dict[str, Any]:
    """Return for each workload how long a plain pass takes, and how many times as long each mode."""
    return {workload: _times(workload, modes, rounds, budget) for workload in workloads}


def _times(workload: str, modes: list[str], rounds: int, budget: float) -> dict[str, Any]:
    """Return the CPU milliseconds of a plain pass, and each mode's times as multiples of the plain pass of its round.

    The first run of a mode warms it up, and counts only if there is no other: a mode that has used its budget of CPU
    seconds is not run again.  A mode that fails is left out, and its error is returned.
    """
    model, x = build(workload)
    turns = {mode: Turns(MODES[mode], model, x, budget) for mode in modes}
    for _ in range(rounds + 1):
        for one in turns.values():
            one.take()
    plain = turns.pop(PLAIN)
    return {
        "plain_ms": [1e3 * seconds for seconds in plain.counted],
        "ratios": {mode: one.ratios(plain) for mode, one in turns.items() if not one.error},
        "errors": {mode: one.error for mode, one in turns.items() if one.error},
    }


class Turns:
    """The CPU seconds that a mode took, in each of its turns."""

    def __init__(self, run: Mode, model: nn.Module, x: torch.Tensor, budget: float) -> None:
        self._run, self._model, self._x = run, model, x
        self._budget = budget
        self._repeats = 1
        """Runs in a turn."""
        self._times: list[float] = []
        self.error = ""

    def take(self) -> None:
        """Take a turn, unless the mode failed before or has used its budget."""
        if self.error or sum(self._times) * self._repeats > self._budget:
            return
        try:
            self._times.append(self._seconds())
        except Exception as error:  # noqa: BLE001 - a mode that fails is a result of the benchmark
            self.error = f"{type(error).__name__}: {error}"

    def _seconds(self) -> float:
        if not self._times:
            self._run(*tiny())
        elif len(self._times) == 1:
            self._repeats += int(LEAST / self._times[0])
        gc.collect()
        start = process_time()
        for _ in range(self._repeats):
            self._run(self._model, self._x)
        return (process_time() - start) / self._repeats

    @property
    def counted(self) -> list[float]:
        """The times without the first, which may be cold."""
        return self._times[1:] or self._times

    def ratios(self, plain: Turns) -> list[float]:
        """Return each time as a multiple of the plain time of the same round."""
        return [own / its for own, its in zip(self.counted, plain.counted, strict=False)]


def measure_storage(workload: str, modes: list[str]) -> dict[str, Any]:
    """Return how many MiB of tensors lived at once in each mode, and the MiB of the largest operation."""
    model, x = build(workload)
    peaks = {mode: peak_of(MODES[mode], model, x) / MIB for mode in modes}
    return {"storage_mib": peaks, "largest_mib": largest_operation(model, x) / MIB}


def measure_resident(workload: str, mode: str) -> dict[str, Any]:
    """Return by how many MiB the resident memory rose at its peak in a first pass."""
    MODES[mode](*tiny())
    model, x = build(workload)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    result = MODES[mode](model, x)
    peak = _status("VmHWM") - before
    del result
    return {"peak_mib": peak / MIB}


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    match = re.search(rf"{field}:\s+(\d+) kB", text)
    if match is None:
        raise RuntimeError(f"/proc/self/status has no {field}")
    return int(match[1]) * 1024


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "time": measure_time,
    "storage": measure_storage,
    "resident": measure_resident,
}


def run_child(**request: Any) -> dict[str, Any]:
    """Return the result of one measurement in a new process."""
    command = [sys.executable, "-m", "benchmarks.child", json.dumps(request)]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Make the measurement that the JSON argument describes."""
    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    measure = MEASURES[request.pop("measure")]
    with torch.no_grad():
        print(json.dumps(measure(**request)))


if __name__ == "__main__":
    main()
