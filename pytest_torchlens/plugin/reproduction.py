"""Has the first failed ``lens_check`` of a run reproduced; ``pytest-lens repro TEST`` alone loads this plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchlens.plugin import check
from pytest_torchlens.plugin.settings import policy_of
from pytest_torchlens.run.repro.failed_check import CheckReproducer

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Listen to comparisons."""
    check.listeners.append(CheckReproducer(policy_of(config).store))
