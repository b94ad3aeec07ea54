"""Runs a recorded graph again from its sources alone."""

from __future__ import annotations

from pytest_torchlens.replay.player import Player

__all__ = ["Player"]
