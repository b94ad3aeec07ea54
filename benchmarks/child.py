"""Makes one measurement in a new process: `python -m benchmarks.child '{...}'` prints one line of JSON.

Time: the modes take turns (A, B, C, A, B, C, …), so that a machine that slows down slows all of them.
Memory: the first pass on this model in its process, because a later one finds the heap already grown.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.modes import MODES
from benchmarks.storage import largest_operation
from benchmarks.storage import peak_of
from benchmarks.workloads import build
from benchmarks.workloads import tiny

MIB = 2**20


def measure_time(workload: str, modes: list[str], rounds: int, budget: float) -> dict[str, Any]:
    """Return each mode's median time in milliseconds, wall and CPU; a mode that exceeds its budget is not run again."""
    model, x = build(workload)
    runs: dict[str, list[tuple[float, float]]] = {}
    errors: dict[str, str] = {}
    for name in modes:
        try:
            MODES[name](model, x)
            runs[name] = []
        except Exception as error:  # noqa: BLE001 - a mode that fails is a result of the benchmark
            errors[name] = f"{type(error).__name__}: {error}"
    for _ in range(rounds):
        for name, times in runs.items():
            if sum(wall for wall, _ in times) < budget:
                times.append(_timed(MODES[name], model, x))
    return {
        "wall_ms": {name: 1e3 * median(wall for wall, _ in times) for name, times in runs.items()},
        "cpu_ms": {name: 1e3 * median(cpu for _, cpu in times) for name, times in runs.items()},
        "runs": {name: len(times) for name, times in runs.items()},
        "errors": errors,
        **(_sizes(model, x) if "fingerprints" in runs else {"operations": None}),
    }


def measure_memory(workload: str, mode: str) -> dict[str, Any]:
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


def measure_storage(workload: str, modes: list[str]) -> dict[str, Any]:
    """Return how many MiB of tensors lived at once in each mode, and the MiB of the largest operation."""
    model, x = build(workload)
    peaks = {mode: peak_of(MODES[mode], model, x) / MIB for mode in modes}
    return {"storage_mib": peaks, "largest_mib": largest_operation(model, x) / MIB}


def _timed(run: Callable[..., object], model: torch.nn.Module, x: torch.Tensor) -> tuple[float, float]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = run(model, x)
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    del result
    return seconds


def _sizes(model: torch.nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Return the number of operations, and the MiB of all activations; shared memory counts once."""
    from pytest_torchlens.capture import record

    recording = record(model, (x,), {}, keep="all")
    saved = [value.tensor for call in recording.calls for value in call.outputs if value.tensor is not None]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    return {"operations": len(recording.calls), "activations_mib": sum(storages.values()) / MIB}


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    match = re.search(rf"{field}:\s+(\d+) kB", text)
    if match is None:
        raise RuntimeError(f"/proc/self/status has no {field}")
    return int(match[1]) * 1024


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "time": measure_time,
    "memory": measure_memory,
    "storage": measure_storage,
}


def main() -> None:
    """Make the measurement that the JSON argument describes."""
    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    measure = MEASURES[request.pop("measure")]
    with torch.no_grad():
        print(json.dumps(measure(**request)))


if __name__ == "__main__":
    main()
