"""An inner pytest in this process forgets what it imported; torch cannot be imported twice."""

from __future__ import annotations

import torchvision  # noqa: F401

import pytest_torchlens.functions
import pytest_torchlens.report
import pytest_torchlens.run  # noqa: F401
