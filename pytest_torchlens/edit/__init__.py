"""Changes activations of a recorded pass, and runs on from there."""

from __future__ import annotations

from pytest_torchlens.edit.edit import AppliedEdit
from pytest_torchlens.edit.edit import edit
from pytest_torchlens.edit.heat_map import HeatMap
from pytest_torchlens.edit.places import Part
from pytest_torchlens.edit.sweep import sweep
from pytest_torchlens.edit.sweep_result import Sweep

__all__ = ["AppliedEdit", "HeatMap", "Part", "Sweep", "edit", "sweep"]
