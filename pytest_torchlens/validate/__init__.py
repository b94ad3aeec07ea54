"""Validates a recording against the model."""

from __future__ import annotations

from pytest_torchlens.validate.trial import tolerance
from pytest_torchlens.validate.validation import PARTS
from pytest_torchlens.validate.validation import Validation
from pytest_torchlens.validate.validation import check_parts
from pytest_torchlens.validate.validation import check_recording
from pytest_torchlens.validate.validation import validate

__all__ = ["PARTS", "Validation", "check_parts", "check_recording", "tolerance", "validate"]
