"""Changes activations of a recorded pass, and runs on from there."""

from __future__ import annotations

from pytest_torchlens.edit.edit import edit
from pytest_torchlens.edit.effect import assert_effect
from pytest_torchlens.edit.places import Part
from pytest_torchlens.records import AppliedEdit

__all__ = ["AppliedEdit", "Part", "assert_effect", "edit"]
