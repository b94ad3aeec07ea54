"""Runs a recorded graph again from its sources alone, whole or in parts."""

from __future__ import annotations

from pytest_torchlens.replay.calls import NotReplayableError
from pytest_torchlens.replay.player import Player
from pytest_torchlens.replay.run import DecisionChangedError
from pytest_torchlens.replay.subgraph import NotExportableError
from pytest_torchlens.replay.subgraph import Subgraph

__all__ = ["DecisionChangedError", "NotExportableError", "NotReplayableError", "Player", "Subgraph"]
