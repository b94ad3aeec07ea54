"""Changes activations of a recorded pass, and runs on from there."""

from __future__ import annotations

from pytest_torchlens.edit.ablations import mean_ablate
from pytest_torchlens.edit.ablations import project_off
from pytest_torchlens.edit.ablations import resample
from pytest_torchlens.edit.ablations import splice_module
from pytest_torchlens.edit.ablations import steer
from pytest_torchlens.edit.ablations import zero_ablate
from pytest_torchlens.edit.edit import edit
from pytest_torchlens.edit.effect import assert_effect
from pytest_torchlens.edit.grid import grid
from pytest_torchlens.edit.heat_map import HeatMap
from pytest_torchlens.edit.patching import patch_from
from pytest_torchlens.edit.patching import path_patch
from pytest_torchlens.edit.places import Part
from pytest_torchlens.edit.readouts import attribution_patch
from pytest_torchlens.edit.readouts import logit_lens
from pytest_torchlens.edit.store import EditFileError
from pytest_torchlens.edit.store import load_edits
from pytest_torchlens.edit.store import save_edits
from pytest_torchlens.edit.sweep import sweep
from pytest_torchlens.edit.sweep_result import Sweep
from pytest_torchlens.records import AppliedEdit

__all__ = [
    "AppliedEdit",
    "EditFileError",
    "HeatMap",
    "Part",
    "Sweep",
    "assert_effect",
    "attribution_patch",
    "edit",
    "grid",
    "load_edits",
    "logit_lens",
    "mean_ablate",
    "patch_from",
    "path_patch",
    "project_off",
    "resample",
    "save_edits",
    "splice_module",
    "steer",
    "sweep",
    "zero_ablate",
]
