"""Measures what a forward pass costs: time, memory and floating-point operations."""

from __future__ import annotations

from pytest_torchlens.measure.flops import FORMULAS
from pytest_torchlens.measure.forward_pass import measure_forward_pass

__all__ = [
    "FORMULAS",
    "measure_forward_pass",
]
