"""The command ``pytest-lens``: what is done with runs after they have ended."""

from __future__ import annotations

from pytest_torchlens.cli.main import main

__all__ = ["main"]
