"""Records what a forward pass did, with no change to the model."""

from __future__ import annotations

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.calls import edges_in
from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.record import Keep
from pytest_torchlens.capture.record import TraceError
from pytest_torchlens.capture.record import check_model
from pytest_torchlens.capture.record import record
from pytest_torchlens.capture.saving import SaveOptions
from pytest_torchlens.capture.saving import SavingError
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Source
from pytest_torchlens.capture.values import Value

__all__ = [
    "Aliased",
    "Call",
    "Keep",
    "Recording",
    "SaveOptions",
    "SavingError",
    "Source",
    "TraceError",
    "Value",
    "check_model",
    "edges_in",
    "fingerprint",
    "record",
]
