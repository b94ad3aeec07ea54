"""The command ``pytest-lens``: works on the reports and baselines of finished runs."""

from __future__ import annotations

from pytest_torchlens.cli.main import main

__all__ = ["main"]
