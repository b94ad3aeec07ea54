"""What of a model's report goes into JUnit XML."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport


def junit_properties(report: ModelReport) -> list[tuple[str, str]]:
    """Return a few short properties, all text."""
    found: dict[str, object] = {"status": report.stage.value if report.error else "recorded"}
    if history := report.history:
        found.update(ops=history.num_operations, layers=history.num_layers, params=history.total_params)
    if verdict := report.verdict:
        found.update(
            status=verdict.status.value,
            ops_checked=verdict.operations_checked,
            edges_checked=verdict.edges_checked,
        )
    if comparison := report.comparison:
        found["baseline"] = comparison.verdict.value
    if cost := report.measurements:
        found["peak_bytes"] = cost.peak_bytes
    if report.flops is not None:
        found["flops"] = report.flops
    if report.forward_ms is not None:
        found["forward_ms"] = f"{report.forward_ms:.3f}"
    if report.graph:
        found["graph"] = report.graph
    return [(f"lens.{name}", str(value)) for name, value in found.items()]
