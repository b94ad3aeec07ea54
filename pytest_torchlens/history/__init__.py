"""The graph of a forward pass and everything asked of it."""

from __future__ import annotations

from pytest_torchlens.history.layer import Layer
from pytest_torchlens.history.lookup import LookupKeyError
from pytest_torchlens.history.model_history import LayersToSave
from pytest_torchlens.history.model_history import ModelHistory
from pytest_torchlens.history.operation import LoggedOperation

__all__ = ["Layer", "LayersToSave", "LoggedOperation", "LookupKeyError", "ModelHistory"]
