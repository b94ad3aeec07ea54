"""The graph of a forward pass: labels, layers, loops, branches, lookups, and saved histories."""

from __future__ import annotations

from pytest_torchlens.history.history_options import LayersToSave
from pytest_torchlens.history.layers_and_operations import Layer
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.history.loaded import LoadedHistory
from pytest_torchlens.history.loaded import load
from pytest_torchlens.history.lookup import LookupKeyError
from pytest_torchlens.history.lookup import Query
from pytest_torchlens.history.model_history import ModelHistory
from pytest_torchlens.history.store import HistoryFileError
from pytest_torchlens.history.walks import NoPathError

__all__ = [
    "HistoryFileError",
    "LoadedHistory",
    "load",
    "Layer",
    "LayersToSave",
    "LoggedOperation",
    "LookupKeyError",
    "ModelHistory",
    "NoPathError",
    "Query",
]
