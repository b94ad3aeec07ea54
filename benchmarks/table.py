"""The measurements as Markdown."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tabulate import tabulate

MISSING = "–"
PACKAGES = ("torch", "torchvision", "timm", "pytest-torchlens", "torchlens")

Results = dict[str, dict[str, Any]]


def environment() -> str:
    """Return one line: processor, Python and packages."""
    versions = [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
    return ", ".join([_processor(), "one thread", f"Python {platform.python_version()}", *versions])


def time_table(results: Results, modes: list[str]) -> str:
    """Return one row for each workload: the plain time, then each mode as a multiple of it."""
    others = [mode for mode in modes if mode != "plain"]
    head = ["model", "operations", "plain", *others, "µs an operation"]
    rows = [
        [
            workload,
            result["operations"] or MISSING,
            f"{result['wall_ms']['plain']:.1f} ms",
            *(ratio(result["wall_ms"], mode) for mode in others),
            _each_operation(result),
        ]
        for workload, result in results.items()
    ]
    return markdown(head, rows)


def field_table(results: Results, without: list[str]) -> str:
    """Return one row for each workload: the CPU time in µs an operation that each thing left out costs."""
    head = ["µs an operation for", *(mode.removeprefix("no ") for mode in without)]
    rows = [[workload, *(_cost(result, mode) for mode in without)] for workload, result in results.items()]
    return markdown(head, rows)


def memory_table(results: Results, modes: list[str]) -> str:
    """Return one row for each workload: the rise in resident memory, plain, then what each mode adds to it."""
    others = [mode for mode in modes if mode != "plain"]
    rows = [
        [
            workload,
            f"{result['activations_mib']:.0f} MiB" if result["operations"] else MISSING,
            f"{result['peak_mib']['plain']:.0f} MiB",
            *(_added(result["peak_mib"], mode) for mode in others),
        ]
        for workload, result in results.items()
    ]
    return markdown(["peak memory", "all activations", "plain", *others], rows)


def note(results: Results) -> str:
    """Return what the numbers mean, how busy the machine was, and which modes failed."""
    busy = max(
        result["wall_ms"][mode] / result["cpu_ms"][mode] for result in results.values() for mode in result["runs"]
    )
    lines = [
        "Multiples are of the plain forward pass; µs an operation: with fingerprints, over the empty mode.",
        f"Wall time exceeded CPU time by {100 * (busy - 1):.0f} % at most.",
    ]
    lines += [
        f"{workload}, {mode}: {error}"
        for workload, result in results.items()
        for mode, error in result["errors"].items()
    ]
    return "\n".join(lines)


def ratio(times: dict[str, float], mode: str) -> str:
    """Return a mode's time as a multiple of the plain time."""
    if mode not in times:
        return MISSING
    multiple = times[mode] / times["plain"]
    return f"{multiple:.2f}" if multiple < 10 else f"{multiple:.0f}"  # noqa: PLR2004


def _cost(result: dict[str, Any], mode: str) -> str:
    times = result["cpu_ms"]
    if mode not in times or "fingerprints" not in times or not result["operations"]:
        return MISSING
    return f"{1e3 * (times['fingerprints'] - times[mode]) / result['operations']:.2f}"


def _added(peaks: dict[str, float], mode: str) -> str:
    return f"{peaks[mode] - peaks['plain']:+.0f}" if mode in peaks else MISSING


def _each_operation(result: dict[str, Any]) -> str:
    times = result["wall_ms"]
    if not result["operations"] or "empty mode" not in times:
        return MISSING
    return f"{1e3 * (times['fingerprints'] - times['empty mode']) / result['operations']:.1f}"


def markdown(head: list[str], rows: list[list[Any]]) -> str:
    """Return a table."""
    align = ("left", *["right"] * (len(head) - 1))
    return tabulate(rows, headers=head, tablefmt="pipe", disable_numparse=True, colalign=align)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8")) if info.exists() else None
    return match[1] if match else platform.processor() or platform.machine()
