"""Stores the activations of a whole data set on disk, and reads them as memory-mapped arrays."""

from __future__ import annotations

from pytest_torchlens.extraction.activations import ActivationArray
from pytest_torchlens.extraction.activations import Activations
from pytest_torchlens.extraction.activations import load_activations
from pytest_torchlens.extraction.index import ExtractError
from pytest_torchlens.extraction.loop import extract

__all__ = [
    "ActivationArray",
    "Activations",
    "ExtractError",
    "extract",
    "load_activations",
]
